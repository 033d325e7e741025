//! The tunnel agent: connects its cluster to a hub, and forwards the hub's requests to its API server.
