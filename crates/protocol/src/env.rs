//! Env: parses `/proc/<pid>/environ`.

use bytes::Bytes;

use crate::rpc::Variable;

/// Splits the environment block of a process. Entries without a name are ignored.
#[must_use]
pub fn parse(environ: &Bytes) -> Vec<Variable> {
    environ
        .split(|byte| *byte == 0)
        .filter_map(|entry| {
            // The first byte may be '=' and is then part of the name: shells use such names, and `getenv` finds them.
            let equals = entry.iter().skip(1).position(|byte| *byte == b'=')? + 1;
            Some(Variable {
                name: environ.slice_ref(&entry[..equals]),
                value: environ.slice_ref(&entry[equals + 1..]),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(environ: &'static [u8], expected: &[(&str, &[u8])]) {
        let variables = parse(&Bytes::from_static(environ));
        let found: Vec<_> = variables
            .iter()
            .map(|variable| (&*variable.name, &*variable.value))
            .collect();
        let expected: Vec<_> = expected
            .iter()
            .map(|(name, value)| (name.as_bytes(), *value))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn entries_are_split_at_the_first_equals_sign() {
        check(b"", &[]);
        check(b"\0\0", &[]);
        check(b"A=1\0B=2\0", &[("A", b"1"), ("B", b"2")]);
        check(b"A=1\0B=2", &[("A", b"1"), ("B", b"2")]);
        check(b"URL=a=b=c\0EMPTY=\0", &[("URL", b"a=b=c"), ("EMPTY", b"")]);
        check(b"no value\0A=1\0", &[("A", b"1")]);
        check(b"=C:=x\0", &[("=C:", b"x")]);
        check(b"A=1\0A=2\0", &[("A", b"1"), ("A", b"2")]);
        check(b"RAW=\xff\xfe\n\0", &[("RAW", b"\xff\xfe\n")]);
    }
}
