"""Commands under the module names that tutorials type."""
