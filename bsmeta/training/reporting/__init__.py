"""Reports of a run while it trains: metrics, speed, the screen, trackers."""
