//! An error and its sources as one line, for logs and for messages to users.
//!
//! The `Display` of an error never repeats its source, so the chain is joined once, where it is printed. Errors of
//! other libraries do repeat their source at times; such a repetition is left out.

use std::error::Error;

/// Joins the error and its sources with `": "`. A source whose text the line already ends with is skipped.
pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let text = error.to_string();
        if !line.ends_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        source = error.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    /// Each message with its source behind it.
    #[derive(Debug)]
    struct Layered(&'static str, Option<Box<Layered>>);

    impl fmt::Display for Layered {
        fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str(self.0)
        }
    }

    impl Error for Layered {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|source| source as _)
        }
    }

    fn check(messages: &[&'static str], expected: &str) {
        let error = messages
            .iter()
            .rev()
            .fold(None, |source, message| {
                Some(Box::new(Layered(message, source)))
            })
            .expect("at least one message");
        assert_eq!(error_chain(&*error), expected);
    }

    #[test]
    fn sources_are_joined_and_repetitions_left_out() {
        check(&["timed out"], "timed out");
        check(
            &["connecting to the API server", "connection refused"],
            "connecting to the API server: connection refused",
        );
        check(
            &["reading: no such file", "no such file"],
            "reading: no such file",
        );
        check(&["a", "b", "c"], "a: b: c");
    }
}
