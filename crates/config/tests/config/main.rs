//! Tests of the public interface: texts in, settings and reports out.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in the functions that its cases share"
)]

mod examples; // Complete files in each notation, and files that were written for another tool.
mod golden; // What a report looks like.
mod keys; // Every documented key loads, and the documentation is right.
mod layers; // Which value wins, and why.
mod properties; // Whatever the text, nothing panics; whatever the settings, they survive being written and read.
mod schema; // Judges a value by the published schema.

use config::{Format, Layers, Resolved};

fn load(text: &str, format: Format) -> Resolved {
    let layers = Layers::new().file("test", text, format);
    layers
        .resolve()
        .unwrap_or_else(|report| panic!("{text}\n{report}"))
}
