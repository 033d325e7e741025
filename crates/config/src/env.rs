//! Decides which environment variables the process has.
//!
//! In ascending precedence: this machine's variables, the selected ones of the target, those of the env file, those of
//! `override`. `unset` removes from the first two, and `unset_local` from the first, so that values that were set explicitly
//! for this session stay.

mod file;

use std::collections::BTreeMap;
use std::fmt;

use regex::bytes::Regex;

use crate::error::RuleError;
use crate::settings::{EnvSettings, NamePattern};
use crate::wildcard;

pub use file::{EnvFile, EnvFileError};

/// Names and values are bytes, as in the kernel's interface.
pub type Environment = BTreeMap<Vec<u8>, Vec<u8>>;

/// Variables that describe a machine and its user, or where its programs are. The target's would be wrong here.
#[rustfmt::skip]
pub(crate) const MACHINE_VARIABLES: &[&str] = &[
    // Where programs and libraries are.
    "PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "MANPATH", "PKG_CONFIG_PATH",
    "CLASSPATH", "JAVA_HOME", "JAVA_EXE", "JDK_HOME", "JRE_HOME", "CATALINA_HOME", "MAVEN_HOME", "M2_HOME", "GRADLE_HOME",
    "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_ROOT", "PIPENV_*", "POETRY_HOME",
    "NODE_PATH", "NVM_*", "NPM_CONFIG_PREFIX", "YARN_*", "PNPM_HOME",
    "GOPATH", "GOROOT", "GOBIN", "GOCACHE", "GOMODCACHE", "GOTOOLCHAIN", "CARGO_HOME", "RUSTUP_HOME",
    "GEM_HOME", "GEM_PATH", "RUBYLIB", "RUBYOPT", "BUNDLE_*", "PERL5LIB", "PERL5OPT", "PHPRC", "PHP_INI_*", "DOTNET_ROOT",
    // The user and the desktop session.
    "HOME", "HOMEPATH", "USER", "LOGNAME", "USERNAME", "SHELL", "SHLVL", "PWD", "OLDPWD", "_", "TMPDIR", "TEMP", "TMP",
    "TERM", "TERM_*", "TERMINFO", "COLORTERM", "COLUMNS", "LINES", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_*",
    "SSH_*", "GPG_*", "DBUS_SESSION_BUS_ADDRESS", "EDITOR", "VISUAL", "PAGER",
    // Standin's own variables.
    "STANDIN_*",
];

/// Compiled once for a session.
#[derive(Clone)]
pub struct EnvRules {
    settings: EnvSettings,
    file: Vec<(Vec<u8>, Vec<u8>)>,
    mapping: Vec<(Regex, Vec<u8>)>,
}

impl EnvRules {
    /// `file` is the parsed file of [`EnvSettings::env_file`].
    pub fn new(settings: &EnvSettings, file: &EnvFile) -> Result<Self, RuleError> {
        let mapping = settings
            .mapping
            .iter()
            .map(|(pattern, value)| {
                let regex = Regex::new(pattern).map_err(|source| RuleError::Regex {
                    key: "feature.env.mapping",
                    pattern: pattern.clone(),
                    source,
                })?;
                Ok((regex, value.0.clone().into_bytes()))
            })
            .collect::<Result<_, RuleError>>()?;
        Ok(Self {
            settings: settings.clone(),
            file: file.entries().to_vec(),
            mapping,
        })
    }

    /// The whole environment of the process. Of a duplicate name the first value is used, like `getenv` does.
    pub fn apply(
        &self,
        target: Vec<(Vec<u8>, Vec<u8>)>,
        local: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Environment {
        let mut environment = first_of_each(local);
        environment.retain(|name, _| !matches_any(&self.settings.unset_local, name));
        for (name, value) in first_of_each(target) {
            if self.takes(&name) {
                let value = self.mapped(&name).unwrap_or(value);
                environment.insert(name, value);
            }
        }
        environment.retain(|name, _| !self.removes(name));
        environment.extend(self.file.iter().cloned());
        let overrides = self.settings.r#override.iter();
        environment.extend(overrides.map(|(name, value)| {
            let value = value.0.clone().into_bytes();
            (name.clone().into_bytes(), value)
        }));
        environment
    }

    /// Whether a variable of the target is selected.
    pub fn takes(&self, name: &[u8]) -> bool {
        let settings = &self.settings;
        if !settings.enabled || any(&settings.exclude, name) {
            return false;
        }
        let named_in_full = |pattern: &NamePattern| {
            !wildcard::has_wildcards(&pattern.0) && pattern.0.as_bytes() == name
        };
        match &settings.include {
            Some(include) if include.iter().any(named_in_full) => true,
            Some(include) if !any(include, name) => false,
            _ => !is_of_a_machine(name),
        }
    }

    fn removes(&self, name: &[u8]) -> bool {
        matches_any(&self.settings.unset, name)
    }

    fn mapped(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.mapping.iter().find_map(|(regex, replacement)| {
            let groups = regex.captures(name)?;
            let mut value = Vec::new();
            groups.expand(replacement, &mut value);
            Some(value)
        })
    }
}

/// Not derived: values may be secrets.
impl fmt::Debug for EnvRules {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("EnvRules")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Upper and lower case are the same.
fn matches_any(patterns: &[NamePattern], name: &[u8]) -> bool {
    let matches =
        |pattern: &NamePattern| wildcard::matches_ignoring_case(pattern.0.as_bytes(), name);
    patterns.iter().any(matches)
}

fn is_of_a_machine(name: &[u8]) -> bool {
    MACHINE_VARIABLES
        .iter()
        .any(|pattern| wildcard::matches(pattern.as_bytes(), name))
}

fn any(patterns: &[NamePattern], name: &[u8]) -> bool {
    patterns
        .iter()
        .any(|pattern| wildcard::matches(pattern.0.as_bytes(), name))
}

fn first_of_each(variables: Vec<(Vec<u8>, Vec<u8>)>) -> Environment {
    let mut first = Environment::new();
    for (name, value) in variables {
        if !name.is_empty() {
            first.entry(name).or_insert(value);
        }
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Format, Layers};

    fn variables(text: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
        text.split_whitespace()
            .filter_map(|variable| variable.split_once('='))
            .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
            .collect()
    }

    fn check(env: &str, expected: &str) {
        check_with(env, "", expected);
    }

    /// Applies the YAML under `feature.env` to one target and one machine.
    fn check_with(env: &str, file: &str, expected: &str) {
        let target = "DB_HOST=db DB_PASSWORD=x REGION=eu CONNECT_TIMEOUT=500 PATH=/target HOME=/app REGION=second";
        let local = "PATH=/local HOME=/me EDITOR=vi REGION=here AWS_PROFILE=me";
        let text = format!("feature: {{env: {env}}}");
        let resolved = Layers::new()
            .file("test", &text, Format::Yaml)
            .resolve()
            .unwrap();
        let file = EnvFile::parse(file).unwrap();
        let rules = EnvRules::new(&resolved.settings.feature.env, &file).unwrap();
        let environment = rules.apply(variables(target), variables(local));
        let shown: Vec<String> = environment
            .iter()
            .map(|(name, value)| {
                format!(
                    "{}={}",
                    String::from_utf8_lossy(name),
                    String::from_utf8_lossy(value)
                )
            })
            .filter(|variable| variable != "EDITOR=vi")
            .collect();
        assert_eq!(shown.join(" "), expected, "{env}");
    }

    #[test]
    fn variables_are_selected() {
        let here = "AWS_PROFILE=me HOME=/me PATH=/local REGION=here";
        check(
            "true",
            "AWS_PROFILE=me CONNECT_TIMEOUT=500 DB_HOST=db DB_PASSWORD=x HOME=/me PATH=/local REGION=eu",
        );
        check("false", here);
        check("{exclude: '*'}", here);
        check(
            "{include: 'DB_*;REGION', exclude: [DB_PASSWORD]}",
            "AWS_PROFILE=me DB_HOST=db HOME=/me PATH=/local REGION=eu",
        );
        check("{include: []}", here);
        check("{include: 'db_*'}", here);
    }

    #[test]
    fn variables_of_a_machine_must_be_named_in_full() {
        check(
            "{include: ['*'], exclude: 'DB_*;CONNECT*'}",
            "AWS_PROFILE=me HOME=/me PATH=/local REGION=eu",
        );
        check(
            "{include: [PATH]}",
            "AWS_PROFILE=me HOME=/me PATH=/target REGION=here",
        );
        check(
            "{include: 'PAT?'}",
            "AWS_PROFILE=me HOME=/me PATH=/local REGION=here",
        );
    }

    #[test]
    fn explicit_values_have_precedence() {
        check(
            "{include: [REGION], unset: [aws_*, REGION], override: {NEW: 1}}",
            "HOME=/me NEW=1 PATH=/local",
        );
        check(
            "{enabled: false, unset: [AWS_PROFILE], override: {AWS_PROFILE: test, REGION: mine}}",
            "AWS_PROFILE=test HOME=/me PATH=/local REGION=mine",
        );
        check_with(
            "{include: [REGION], override: {B: override}}",
            "REGION=file\nB=file\nC=file",
            "AWS_PROFILE=me B=override C=file HOME=/me PATH=/local REGION=file",
        );
    }

    #[test]
    fn values_are_mapped_by_name() {
        check(
            "{include: '*_TIMEOUT;REGION', mapping: {'(\\w+)_TIMEOUT': '$1-10', '.*TIMEOUT': never, '^REG$': never}}",
            "AWS_PROFILE=me CONNECT_TIMEOUT=CONNECT-10 HOME=/me PATH=/local REGION=eu",
        );
    }

    #[test]
    fn values_are_not_shown() {
        let text = "feature: {env: {override: {A: hunter2}, mapping: {B: hunter2}}}";
        let layers = Layers::new().file("test", text, Format::Yaml);
        assert!(!format!("{layers:?}").contains("hunter2"));
        let settings = layers.resolve().unwrap().settings;
        let file = EnvFile::parse("C=hunter2").unwrap();
        let rules = EnvRules::new(&settings.feature.env, &file).unwrap();
        assert!(!format!("{rules:?} {settings:?} {file:?}").contains("hunter2"));
    }

    #[test]
    fn names_and_values_need_not_be_text() {
        let rules = EnvRules::new(&EnvSettings::default(), &EnvFile::default()).unwrap();
        let odd = (b"N\xff".to_vec(), b"\xfe".to_vec());
        let nameless = (Vec::new(), b"x".to_vec());
        let environment = rules.apply(vec![odd.clone(), nameless], Vec::new());
        assert_eq!(environment.into_iter().collect::<Vec<_>>(), [odd]);
    }
}
