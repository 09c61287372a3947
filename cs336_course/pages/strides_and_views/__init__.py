"""The room of the page strides_and_views."""
