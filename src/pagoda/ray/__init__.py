"""Pagoda on Ray Serve: `pagoda.ray:build_app` for `serve deploy`, and the policy that scales it."""

from pagoda.ray.app import build_app
from pagoda.ray.scaling import replicas_for_load

__all__ = ["build_app", "replicas_for_load"]
