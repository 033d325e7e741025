//! The three formats of a config file.

use std::fmt;
use std::path::Path;

/// The format of a config file. All three have the same keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// With comments and trailing commas allowed, since people write these files by hand.
    Json,
    Yaml,
    Toml,
}

impl Format {
    pub const ALL: [Self; 3] = [Self::Json, Self::Yaml, Self::Toml];

    /// By the extension of a file's name; `None` if it is unknown.
    pub fn of_path(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        match extension.as_str() {
            "json" | "jsonc" | "json5" => Some(Self::Json),
            "yaml" | "yml" => Some(Self::Yaml),
            "toml" => Some(Self::Toml),
            _ => None,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Json => "JSON",
            Self::Yaml => "YAML",
            Self::Toml => "TOML",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_determines_the_format() {
        for (path, format) in [
            ("standin.json", Some(Format::Json)),
            (".mirrord/mirrord.json", Some(Format::Json)),
            ("a/b.YML", Some(Format::Yaml)),
            ("b.yaml", Some(Format::Yaml)),
            ("b.toml", Some(Format::Toml)),
            ("standin", None),
            ("standin.ini", None),
        ] {
            assert_eq!(Format::of_path(Path::new(path)), format, "{path}");
        }
    }
}
