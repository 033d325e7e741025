//! The charts, rendered by Helm as it is: what values do, which are refused, and what documents promise about them. And
//! the workflows that release them, whose shell is run for real.
//!
//! Nothing here needs a cluster; the scenarios of `crates/e2e` test what does.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "all of it is a test, also what several tests share"
)]

mod charts {
    // The objects that a chart makes.
    mod objects;
    // Who may do what, and whether the page about it is true.
    mod permissions;
    // Helm, and YAML.
    mod rendering;
    // What can be set, and what is refused.
    mod values;
    // What the release workflows do.
    mod workflows;
}
