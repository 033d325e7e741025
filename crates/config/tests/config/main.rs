//! Tests of the public interface: texts in, settings and reports out.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in the functions that its cases share"
)]

mod examples; // Complete files in each notation, and files that were written for another tool.
mod golden; // The texts of reports.
mod keys; // Every documented key loads, and the documentation is right.
mod layers; // The precedence of values, and their origins.
mod properties; // No text causes a panic, and all settings survive a round trip.
mod schema; // Validates a value with the published schema.

use config::{Format, Layers, Resolved};

fn load(text: &str, format: Format) -> Resolved {
    let layers = Layers::new().file("test", text, format);
    layers
        .resolve()
        .unwrap_or_else(|report| panic!("{text}\n{report}"))
}
