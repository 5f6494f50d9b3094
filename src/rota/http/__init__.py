"""What people and programs see: JSON under `api/`, pages under `ui/`."""
