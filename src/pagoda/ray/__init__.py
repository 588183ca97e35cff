"""Pagoda on Ray Serve: `pagoda.ray:build_app` for `serve deploy`, and its autoscaling policy."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pagoda.ray.scaling import replicas_for_load

if TYPE_CHECKING:
    from ray import serve

__all__ = ["build_app", "replicas_for_load"]


def build_app(flags: Mapping[str, Any]) -> "serve.Application":
    """The application of `serve deploy` and `serve run`; `flags` are those of `pagoda serve`, by
    their names. What Ray decides (replicas, resources, scaling) stands in its own `deployments`.
    ConfigError for flags that there are not; ImportError without Ray, which is imported here."""
    from pagoda.ray.app import application

    return application(flags)
