//! The hub: clusters that can only dial out connect to it, and Kubernetes clients reach their API servers through it.
