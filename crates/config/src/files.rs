//! Decides whether a path is local or at the target.
//!
//! A decision is made for every file call of the process, so it must be cheap: compiled expressions, which are used only if
//! the user has set some, then comparisons of prefixes.

mod builtin;

use std::borrow::Cow;

use regex::bytes::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};

use crate::error::RuleError;
use crate::settings::{FileMode, FileSettings, RegexText};
use builtin::BuiltIn;

pub(crate) use builtin::{LOCAL, LOCAL_CONFIGURATION, REMOTE};

/// The local environment of the process. All paths are absolute.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    pub home: Option<Vec<u8>>,
    pub working_directory: Option<Vec<u8>>,
    /// `$TMPDIR`, if it is set.
    pub temporary: Option<Vec<u8>>,
    /// Folders with code of the process, such as the one its program is in.
    pub code: Vec<Vec<u8>>,
}

/// Where a path is accessed, and its name there.
///
/// An unchanged path is borrowed, so a caller can see that the argument of the process can be used unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice<'p> {
    Local(Cow<'p, [u8]>),
    /// At the target, for reading and writing.
    Remote(Cow<'p, [u8]>),
    /// At the target, for reading only.
    ReadOnlyRemote(Cow<'p, [u8]>),
    /// It does not exist for this process.
    NotFound,
}

/// Compiled once for a session.
#[derive(Debug, Clone)]
pub struct FileRules {
    mode: FileMode,
    mapping: Option<Mapping>,
    /// In order of precedence.
    lists: Vec<(PathList, RegexSet)>,
    built_in: BuiltIn,
}

#[derive(Debug, Clone, Copy)]
enum PathList {
    NotFound,
    Local,
    ReadWrite,
    ReadOnly,
}

#[derive(Debug, Clone)]
struct Mapping {
    /// Quickly rules out any match, which is the usual case.
    any: RegexSet,
    replacements: Vec<(Regex, Vec<u8>)>,
}

impl FileRules {
    pub fn new(settings: &FileSettings, surroundings: &Surroundings) -> Result<Self, RuleError> {
        let lists = [
            (
                PathList::NotFound,
                "feature.fs.not_found",
                &settings.not_found,
            ),
            (PathList::Local, "feature.fs.local", &settings.local),
            (
                PathList::ReadWrite,
                "feature.fs.read_write",
                &settings.read_write,
            ),
            (
                PathList::ReadOnly,
                "feature.fs.read_only",
                &settings.read_only,
            ),
        ];
        let lists = lists
            .into_iter()
            .filter(|(_, _, patterns)| !patterns.is_empty())
            .map(|(listed, key, patterns)| {
                let patterns = patterns.iter().map(RegexText::as_str);
                Ok((listed, compile_set(key, patterns)?))
            })
            .collect::<Result<_, RuleError>>()?;
        Ok(Self {
            mode: settings.mode,
            mapping: Mapping::new(settings)?,
            lists,
            built_in: BuiltIn::new(surroundings),
        })
    }

    /// Decides about an absolute path without `.`, `..` and doubled slashes. Anything else is local: resolving it is the
    /// caller's work. `write` says whether it would be changed, by opening it for writing or in any other way.
    pub fn choose<'p>(&self, path: &'p [u8], write: bool) -> Choice<'p> {
        if path.first() != Some(&b'/') {
            return Choice::Local(Cow::Borrowed(path));
        }
        let path = match &self.mapping {
            Some(mapping) => mapping.apply(path),
            None => Cow::Borrowed(path),
        };
        match self.mode {
            FileMode::Local => Choice::Local(path),
            _ => self.choose_mapped(path, write),
        }
    }

    /// The setting or list that decides about a path, by its key or name in the documentation.
    pub fn rule(&self, path: &[u8]) -> &'static str {
        const MODE: &str = "feature.fs.mode";
        if self.mode == FileMode::Local || path.first() != Some(&b'/') {
            return MODE;
        }
        let path = match &self.mapping {
            Some(mapping) => mapping.apply(path),
            None => Cow::Borrowed(path),
        };
        let mut lists = self.lists.iter();
        match lists.find(|(_, patterns)| patterns.is_match(&path)) {
            Some((PathList::NotFound, _)) => "feature.fs.not_found",
            Some((PathList::Local, _)) => "feature.fs.local",
            Some((PathList::ReadWrite, _)) => "feature.fs.read_write",
            Some((PathList::ReadOnly, _)) => "feature.fs.read_only",
            None => match self.built_in.is_remote(&path) {
                Some(true) => "built-in list of configuration",
                Some(false) => "built-in list of what a program needs here",
                None => MODE,
            },
        }
    }

    /// Whether a path that is at the target, under the name that it has there, may be changed there.
    pub fn may_write(&self, path: &[u8]) -> bool {
        let choice = self.choose_mapped(Cow::Borrowed(path), true);
        matches!(choice, Choice::Remote(_))
    }

    fn choose_mapped<'p>(&self, path: Cow<'p, [u8]>, write: bool) -> Choice<'p> {
        let listed = self
            .lists
            .iter()
            .find(|(_, patterns)| patterns.is_match(&path));
        match listed.map(|(listed, _)| *listed) {
            Some(PathList::NotFound) => Choice::NotFound,
            Some(PathList::Local) => Choice::Local(path),
            Some(PathList::ReadWrite) => Choice::Remote(path),
            Some(PathList::ReadOnly) => read_only(path, write),
            None => self.choose_by_mode(path, write),
        }
    }

    fn choose_by_mode<'p>(&self, path: Cow<'p, [u8]>, write: bool) -> Choice<'p> {
        let remote = match self.built_in.is_remote(&path) {
            Some(remote) => remote,
            None => self.mode != FileMode::LocalWithOverrides,
        };
        match (remote, self.mode) {
            (false, _) => Choice::Local(path),
            (true, FileMode::Write) => Choice::Remote(path),
            (true, _) => read_only(path, write),
        }
    }
}

fn read_only(path: Cow<'_, [u8]>, write: bool) -> Choice<'_> {
    if write {
        Choice::Local(path)
    } else {
        Choice::ReadOnlyRemote(path)
    }
}

impl Mapping {
    fn new(settings: &FileSettings) -> Result<Option<Self>, RuleError> {
        const KEY: &str = "feature.fs.mapping";
        if settings.mapping.is_empty() {
            return Ok(None);
        }
        let patterns = settings.mapping.iter().map(|(pattern, _)| pattern.as_str());
        let any = compile_set(KEY, patterns)?;
        let replacements = settings
            .mapping
            .iter()
            .map(|(pattern, replacement)| {
                let regex = RegexBuilder::new(pattern)
                    .case_insensitive(true)
                    .build()
                    .map_err(|source| RuleError::Regex {
                        key: KEY,
                        pattern: pattern.clone(),
                        source,
                    })?;
                Ok((regex, replacement.clone().into_bytes()))
            })
            .collect::<Result<_, RuleError>>()?;
        Ok(Some(Self { any, replacements }))
    }

    fn apply<'p>(&self, path: &'p [u8]) -> Cow<'p, [u8]> {
        if !self.any.is_match(path) {
            return Cow::Borrowed(path);
        }
        let first = self
            .replacements
            .iter()
            .find(|(regex, _)| regex.is_match(path));
        match first {
            Some((regex, replacement)) => regex.replace(path, replacement.as_slice()),
            None => Cow::Borrowed(path),
        }
    }
}

fn compile_set<'r>(
    key: &'static str,
    patterns: impl Iterator<Item = &'r str>,
) -> Result<RegexSet, RuleError> {
    RegexSetBuilder::new(patterns)
        .case_insensitive(true)
        .size_limit(64 << 20)
        .build()
        .map_err(|source| RuleError::TooLarge { key, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Format, Layers};

    fn rules(fs: &str) -> FileRules {
        let text = format!("feature: {{fs: {fs}}}");
        let resolved = Layers::new()
            .file("test", &text, Format::Yaml)
            .resolve()
            .unwrap();
        let surroundings = Surroundings {
            home: Some(b"/people/me".to_vec()),
            working_directory: Some(b"/data/checkouts/shop".to_vec()),
            temporary: Some(b"/scratch/tmp".to_vec()),
            code: vec![b"/programs/app/bin".to_vec()],
        };
        FileRules::new(&resolved.settings.feature.fs, &surroundings).unwrap()
    }

    /// `L` is local, `R` is the target's for reading, `W` for writing as well, `-` does not exist. A path after it is the mapped
    /// path. First for reading, then for writing.
    fn shown(rules: &FileRules, path: &str) -> String {
        let one = |write| {
            let with = |letter: &str, chosen: &Cow<'_, [u8]>| match chosen {
                Cow::Borrowed(_) => letter.to_owned(),
                Cow::Owned(path) => format!("{letter}:{}", String::from_utf8_lossy(path)),
            };
            match rules.choose(path.as_bytes(), write) {
                Choice::Local(path) => with("L", &path),
                Choice::ReadOnlyRemote(path) => with("R", &path),
                Choice::Remote(path) => with("W", &path),
                Choice::NotFound => "-".to_owned(),
            }
        };
        format!("{} {}", one(false), one(true))
    }

    #[test]
    fn the_deciding_rule_is_named() {
        let lists = "{local: '^/a', not_found: '^/b', mapping: {'^/c': '/a'}}";
        for (fs, path, expected) in [
            ("local", "/etc/hosts", "feature.fs.mode"),
            ("read", "/srv/x", "feature.fs.mode"),
            ("read", "/etc/hosts", "built-in list of configuration"),
            (
                "read",
                "/usr/bin",
                "built-in list of what a program needs here",
            ),
            (lists, "/a", "feature.fs.local"),
            (lists, "/b", "feature.fs.not_found"),
            (lists, "/c", "feature.fs.local"),
        ] {
            assert_eq!(rules(fs).rule(path.as_bytes()), expected, "{fs} {path}");
        }
    }

    fn check(fs: &str, cases: &[(&str, &str)]) {
        let rules = rules(fs);
        for (path, expected) in cases {
            assert_eq!(shown(&rules, path), *expected, "{fs} {path}");
        }
    }

    #[test]
    fn the_mode_decides_about_unlisted_paths() {
        let paths = ["/srv/data", "/etc/shop.conf", "/usr/lib/x"];
        for (mode, expected) in [
            ("local", ["L L", "L L", "L L"]),
            ("localwithoverrides", ["L L", "R L", "L L"]),
            ("read", ["R L", "R L", "L L"]),
            ("write", ["W W", "W W", "L L"]),
            ("true", ["R L", "R L", "L L"]),
            ("false", ["L L", "L L", "L L"]),
        ] {
            let cases: Vec<_> = paths.into_iter().zip(expected).collect();
            check(mode, &cases);
        }
    }

    #[test]
    fn own_files_of_the_process_are_local() {
        let local = [
            "/usr/lib/x86_64-linux-gnu/libc.so.6",
            "/usr/bin/python3",
            "/lib64/ld-linux-x86-64.so.2",
            "/lib",
            "/bin/sh",
            "/opt/jdk/lib/modules",
            "/nix/store/abc/bin/x",
            "/proc/self/maps",
            "/sys/fs/cgroup",
            "/dev/null",
            "/tmp/x",
            "/var/tmp/x",
            "/scratch/tmp/x",
            "/people/me",
            "/people/me/.config/x",
            "/people",
            "/data/checkouts/shop/src/main.py",
            "/data/checkouts",
            "/data",
            "/programs/app/bin/app",
            "/programs/app",
            "/srv/plugins/a.so",
            "/srv/plugins/libb.so.1.2.3",
            "/etc/ld.so.cache",
            "/etc/ld.so.conf.d/x.conf",
            "/etc/alternatives/java",
            "/etc/java-17-openjdk/security/java.security",
            "/etc/ssl/certs/ca-certificates.crt",
            "/etc/ssl/openssl.cnf",
            "/etc/passwd",
            "/run/user/1000/bus",
            "/var/run/docker.sock",
            "/var/cache/fontconfig/x",
            "relative/path",
            "",
        ];
        check("read", &local.map(|path| (path, "L L")));
        check("write", &local.map(|path| (path, "L L")));
    }

    #[test]
    fn configuration_and_secrets_are_the_targets() {
        let remote = [
            "/etc",
            "/etc/",
            "/etc/resolv.conf",
            "/etc/hosts",
            "/etc/hostname",
            "/etc/shop/config.yaml",
            "/etc/localtime",
            "/etc/passwords",
            "/etc/ssl/private/tls.key",
            "/var/run/secrets/kubernetes.io/serviceaccount/token",
            "/run/secrets/password",
        ];
        check("read", &remote.map(|path| (path, "R L")));
        check("localwithoverrides", &remote.map(|path| (path, "R L")));
        check("write", &remote.map(|path| (path, "W W")));
        check(
            "read",
            &[("/", "R L"), ("/data/other", "R L"), ("/datab", "R L")],
        );
        check(
            "read",
            &[
                ("/usrlocal/x", "R L"),
                ("/srv/a.sob", "R L"),
                ("/srv/a.so.x", "R L"),
            ],
        );
    }

    #[test]
    fn lists_override_the_built_in_lists_in_order() {
        check(
            "{mode: read, read_only: ['^/usr/share/shop/', '/both'], read_write: '^/srv/uploads', local: ['^/etc/ssl', '/both'], not_found: ['\\.aws/', '^/srv/uploads/no']}",
            &[
                ("/usr/share/shop/x", "R L"),
                ("/usr/share/other", "L L"),
                ("/USR/SHARE/SHOP/x", "R L"),
                ("/srv/uploads/a", "W W"),
                ("/srv/uploads/no", "- -"),
                ("/etc/ssl/private/tls.key", "L L"),
                ("/people/me/.aws/credentials", "- -"),
                ("/srv/both", "L L"),
            ],
        );
        check(
            "{mode: local, read_only: ['.'], not_found: ['x']}",
            &[("/x", "L L")],
        );
        check(
            "{mode: localwithoverrides, read_write: ['^/srv/']}",
            &[("/srv/x", "W W"), ("/x", "L L")],
        );
    }

    #[test]
    fn paths_are_mapped_first() {
        check(
            "{mapping: {'^/srv/dev/(?<app>[^/]+)': '/mnt/configs/$app', '^/srv/': /never/, '^/here/(.*)': '/tmp/$1'}, read_only: ['^/tmp/r']}",
            &[
                (
                    "/srv/dev/api/app.conf",
                    "R:/mnt/configs/api/app.conf L:/mnt/configs/api/app.conf",
                ),
                ("/srv/x", "R:/never/x L:/never/x"),
                ("/here/x", "L:/tmp/x L:/tmp/x"),
                ("/here/r", "R:/tmp/r L:/tmp/r"),
                ("/other", "R L"),
            ],
        );
    }

    #[test]
    fn names_need_not_be_text() {
        let rules = rules("{not_found: ['secret']}");
        let path = b"/srv/\xff\xfe";
        assert_eq!(
            rules.choose(path, false),
            Choice::ReadOnlyRemote(Cow::Borrowed(path))
        );
        assert_eq!(rules.choose(b"/srv/\xffsecret", false), Choice::NotFound);
    }
}
