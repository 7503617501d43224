"""Look here last."""
