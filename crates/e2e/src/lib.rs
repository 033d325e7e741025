//! What stories need to be told: clusters or targets to play in, a stage of their own, and a clear report when one fails.
//!
//! The stories themselves are in `tests/stories`.

pub mod environment;
pub mod fixture;
pub mod machine;
mod stage;
mod story;
mod wait;
mod world;

pub use stage::{Output, Stage};
pub use story::{Needs, Story, tell};
pub use wait::until;
pub use world::{LaterWorld, OwnClusters, PlayCluster, World};
