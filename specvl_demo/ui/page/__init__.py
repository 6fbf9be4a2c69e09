"""What a visitor sees: composition, handlers, catalog, assets."""
