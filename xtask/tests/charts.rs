//! Tests of the charts, rendered by a real Helm: the effect of values, values that are rejected, and what documents
//! state about them. And tests of the release workflows, whose shell scripts are executed.
//!
//! Nothing here needs a cluster; the scenarios of `crates/e2e` test what does.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is test code, including shared helpers"
)]

mod charts {
    // Sessions over several clusters.
    mod clusters;
    // The objects of the chart.
    mod objects;
    // Permissions, and whether docs/permissions.md matches them.
    mod permissions;
    // Rendering with Helm, and parsing YAML.
    mod rendering;
    // The charts of the hub and of the tunnel agent.
    mod tunnel;
    // Their values.
    mod tunnel_values;
    // Values, and values that are rejected.
    mod values;
    // The release workflows.
    mod workflows;
}
