//! The settings that `magic` adds. Settings of the user are never removed or replaced: lists and maps are extended.

use regex::RegexBuilder;

use crate::files::Surroundings;
use crate::layers::Resolved;
use crate::settings::{FileMode, FileSettings, MagicSettings, NamePattern, RegexText};

/// Variables that choose a profile, are credentials, or select where and how the identity is requested: another endpoint,
/// no metadata service, other certificates. The region is no part of the identity.
pub(crate) const AWS: &[&str] = &[
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SECURITY_TOKEN",
    "AWS_CREDENTIAL_EXPIRATION",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_*",
    "AWS_VAULT*",
    "AWS_SSO_*",
    "AWS_SDK_LOAD_CONFIG",
    "AWS_ENDPOINT_URL*",
    "AWS_EC2_METADATA_*",
    "AWS_CA_BUNDLE",
];

/// The folder of AWS tools in the home folder.
pub(crate) const AWS_FOLDER: &str = ".aws";

pub(crate) const PROXY: &[&str] = &[
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "FTP_PROXY",
    "NO_PROXY",
];

/// Mounts that every container or every machine has, which are no volumes.
pub(crate) const SYSTEM_MOUNTS: &[&str] = &[
    "/proc",
    "/sys",
    "/dev",
    "/etc/hosts",
    "/etc/hostname",
    "/etc/resolv.conf",
    "/run/.containerenv",
    "/run/secrets",
    "/run/credentials",
    "/run/netns",
    "/run/lock",
    "/run/user",
    "/boot",
    "/snap",
];

/// Local folders of every program. A mount that contains one of them is a part of the machine, and no volume.
pub(crate) const LOCAL_FOLDERS: &[&str] =
    &["/usr", "/lib", "/bin", "/nix", "/run", "/tmp", "/var/tmp"];

/// The inputs of bundles.
#[derive(Debug, Clone, Default)]
pub struct MagicSurroundings {
    /// The mount points at the target.
    pub mounts: Vec<String>,
    /// An empty folder of this session, to replace folders that should be empty.
    pub empty_folder: Option<String>,
}

impl Resolved {
    /// Adds the settings of all bundles, and notes their origins.
    pub fn add_magic(&mut self, surroundings: &Surroundings, magic: &MagicSurroundings) {
        let feature = &self.settings.feature;
        let proxy = self.is_on(|magic| magic.proxy) && feature.network.outgoing.tcp;
        let auto_mount = self.is_on(|magic| magic.auto_mount) && feature.fs.mode != FileMode::Local;
        if self.needs_empty_folder() {
            self.add_aws(surroundings, magic.empty_folder.as_deref());
        }
        if proxy {
            self.unset_local("magic.proxy", PROXY);
        }
        if auto_mount {
            self.add_mounts(&magic.mounts, surroundings);
        }
    }

    /// Whether a bundle needs [`MagicSurroundings::empty_folder`].
    pub fn needs_empty_folder(&self) -> bool {
        self.is_on(|magic| magic.aws) && self.settings.feature.env.enabled
    }

    fn is_on(&self, of: fn(&MagicSettings) -> bool) -> bool {
        of(&self.settings.magic) && of(&self.settings.feature.magic)
    }

    fn add_aws(&mut self, surroundings: &Surroundings, empty_folder: Option<&str>) {
        const BUNDLE: &str = "magic.aws";
        self.unset_local(BUNDLE, AWS);
        let home = surroundings.home.as_deref();
        let home = home.and_then(|home| std::str::from_utf8(home).ok());
        let (Some(home), Some(folder)) = (home, empty_folder) else {
            return;
        };
        let home = home.trim_end_matches('/');
        let files = &mut self.settings.feature.fs;
        if names_in_particular(files, home) {
            return;
        }
        // Tools handle an empty, writable folder better than a missing one.
        let replaced = regex::escape(&format!("{home}/{AWS_FOLDER}"));
        let pattern = format!("^{replaced}(/|$)");
        let replacement = folder.replace('$', "$$") + "${1}";
        files.mapping.0.push((pattern, replacement));
        self.origins.add("feature.fs.mapping", BUNDLE);
    }

    fn unset_local(&mut self, bundle: &'static str, names: &[&str]) {
        let unset = &mut self.settings.feature.env.unset_local;
        unset
            .0
            .extend(names.iter().map(|name| NamePattern((*name).to_owned())));
        self.origins.add("feature.env.unset_local", bundle);
    }

    fn add_mounts(&mut self, mounts: &[String], surroundings: &Surroundings) {
        let patterns: Vec<RegexText> = mounts
            .iter()
            .filter(|mount| is_volume(mount, surroundings))
            .map(|mount| RegexText(format!("^{}(/|$)", regex::escape(mount))))
            .collect();
        if patterns.is_empty() {
            return;
        }
        let files = &mut self.settings.feature.fs;
        // A process that writes files of the target also writes to its volumes.
        let (list, key) = match files.mode {
            FileMode::Write => (&mut files.read_write, "feature.fs.read_write"),
            _ => (&mut files.read_only, "feature.fs.read_only"),
        };
        list.0.extend(patterns);
        self.origins.add(key, "magic.auto_mount");
    }
}

/// Whether a list of the user names files of AWS tools, and not only a whole home folder.
fn names_in_particular(files: &FileSettings, home: &str) -> bool {
    let lists = [
        &files.not_found,
        &files.local,
        &files.read_write,
        &files.read_only,
    ];
    let mut patterns = lists.into_iter().flat_map(|list| list.iter());
    patterns.any(|pattern| {
        let pattern = RegexBuilder::new(pattern.as_str())
            .case_insensitive(true)
            .build();
        pattern.is_ok_and(|pattern| {
            let is_named = |path: &str| pattern.is_match(&format!("{home}/{path}"));
            let other = ".x/config .x/credentials".split(' ').any(is_named);
            !other && ".aws/config .aws/credentials".split(' ').any(is_named)
        })
    })
}

/// Whether the mount is a volume, and contains no local folder of the process.
fn is_volume(mount: &str, surroundings: &Surroundings) -> bool {
    let is_below = |path: &[u8], folder: &[u8]| {
        let rest = path.strip_prefix(folder);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    };
    let here = [
        &surroundings.home,
        &surroundings.working_directory,
        &surroundings.temporary,
    ];
    let own = here.into_iter().flatten().chain(&surroundings.code);
    let local_folders = LOCAL_FOLDERS.iter().map(|path| path.as_bytes());
    let mut local_folders = local_folders.chain(own.map(Vec::as_slice));
    let mount = mount.as_bytes();
    mount.starts_with(b"/")
        && mount != b"/"
        && !SYSTEM_MOUNTS
            .iter()
            .any(|of| is_below(mount, of.as_bytes()))
        && !local_folders.any(|path| is_below(path, mount))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{EnvFile, EnvRules};
    use crate::files::{Choice, FileRules};
    use crate::format::Format;
    use crate::layers::Layers;
    use crate::settings::Settings;

    fn surroundings() -> Surroundings {
        Surroundings {
            home: Some(b"/users/me".to_vec()),
            ..Surroundings::default()
        }
    }

    fn resolve(text: &str) -> Resolved {
        let layers = Layers::new().file("test", text, Format::Yaml);
        let mut resolved = layers.resolve().unwrap();
        let magic = MagicSurroundings {
            mounts: ["/", "/proc", "/tmp/my config", "/dev/shm", "/etc/hosts"]
                .map(str::to_owned)
                .to_vec(),
            empty_folder: Some("/tmp/standin-$x".to_owned()),
        };
        resolved.add_magic(&surroundings(), &magic);
        resolved
    }

    fn environment(resolved: &Resolved) -> String {
        environment_of(
            resolved,
            "AWS_PROFILE=mine AWS_ROLE_ARN=mine AWS_REGION=mine https_proxy=mine X=1",
        )
    }

    fn environment_of(resolved: &Resolved, local: &str) -> String {
        let rules = EnvRules::new(&resolved.settings.feature.env, &EnvFile::default()).unwrap();
        let pairs = |text: &str| {
            let pairs = text.split(' ').filter_map(|pair| pair.split_once('='));
            pairs
                .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
                .collect::<Vec<_>>()
        };
        let target = pairs("AWS_ROLE_ARN=theirs AWS_ACCESS_KEY_ID=theirs");
        let environment = rules.apply(target, pairs(local));
        let text = environment.iter().map(|(name, value)| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            format!("{}={}", text(name), text(value))
        });
        text.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_targets_identity_is_used_unless_magic_is_off() {
        let theirs = "AWS_ACCESS_KEY_ID=theirs AWS_REGION=mine AWS_ROLE_ARN=theirs X=1";
        let keep_aws =
            "AWS_ACCESS_KEY_ID=theirs AWS_PROFILE=mine AWS_REGION=mine AWS_ROLE_ARN=theirs X=1";
        let keep_all = "AWS_ACCESS_KEY_ID=theirs AWS_PROFILE=mine AWS_REGION=mine AWS_ROLE_ARN=theirs X=1 https_proxy=mine";
        let mine = "AWS_PROFILE=mine AWS_REGION=mine AWS_ROLE_ARN=mine X=1";
        for (text, expected) in [
            ("{}", theirs),
            ("magic: true", theirs),
            ("magic: 'true'", theirs),
            ("magic: {aws: false}", keep_aws),
            ("magic: {aws: 'false'}", keep_aws),
            ("feature: {magic: {aws: false}}", keep_aws),
            ("magic: false", keep_all),
            ("magic: 'false'", keep_all),
            ("feature: {magic: false}", keep_all),
            ("feature: {env: false}", mine),
        ] {
            assert_eq!(environment(&resolve(text)), expected, "{text}");
        }
    }

    #[test]
    fn variables_that_would_defeat_the_targets_identity_are_removed() {
        let theirs = "AWS_ACCESS_KEY_ID=theirs AWS_ROLE_ARN=theirs";
        for name in [
            "AWS_ENDPOINT_URL",
            "AWS_ENDPOINT_URL_STS",
            "AWS_EC2_METADATA_DISABLED",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT",
            "AWS_CA_BUNDLE",
            "AWS_SDK_LOAD_CONFIG",
        ] {
            let local = format!("{name}=mine");
            assert_eq!(environment_of(&resolve("{}"), &local), theirs, "{name}");
            let kept = environment_of(&resolve("magic: false"), &local);
            assert!(kept.contains(&local), "{kept}");
        }
    }

    /// The page for users has exactly what the settings get.
    #[test]
    fn the_reference_lists_what_magic_changes() {
        let page = crate::reference_text();
        let list = |title: &str| -> Vec<String> {
            let section = page.split_once(&format!("\n### {title}\n")).unwrap().1;
            let items = section.split("\n\n").nth(1).unwrap();
            let items = items.trim().split(", ");
            items
                .map(|item| item.trim_matches('`').to_owned())
                .collect()
        };
        let unset = |text: &str| -> Vec<String> {
            let patterns = resolve(text).settings.feature.env.unset_local;
            patterns.iter().map(|pattern| pattern.0.clone()).collect()
        };
        assert_eq!(
            list("Variables of AWS tools"),
            unset("magic: {proxy: false}")
        );
        assert_eq!(
            list("Variables of HTTP proxies"),
            unset("magic: {aws: false}")
        );
        let mapping = resolve("{}").settings.feature.fs.mapping;
        let mapped = mapping.iter().map(|(pattern, _)| pattern.clone());
        let files = list("Folders of AWS tools").into_iter();
        let files = files.map(|path| path.replace('~', "^/users/me").replace('.', "\\.") + "(/|$)");
        assert_eq!(mapped.collect::<Vec<_>>(), files.collect::<Vec<_>>());
        for mount in list("Mounts that are no volumes") {
            assert!(
                !is_volume(&format!("{mount}/x"), &surroundings()),
                "{mount}"
            );
        }
        for folder in list("Local folders that no volume replaces") {
            assert!(!is_volume(&folder, &surroundings()), "{folder}");
        }
    }

    #[test]
    fn settings_of_the_user_stay_and_come_first() {
        let resolved = resolve("feature: {env: {override: {AWS_PROFILE: chosen}, unset_local: X}}");
        assert!(environment(&resolved).contains("AWS_PROFILE=chosen"));
        assert!(!environment(&resolved).contains("X=1"));
    }

    #[test]
    fn aws_files_are_in_an_empty_folder_unless_the_user_lists_them() {
        let check = |text: &str, path: &str, expected: &str| {
            let resolved = resolve(text);
            let rules = FileRules::new(&resolved.settings.feature.fs, &surroundings()).unwrap();
            let choice = rules.choose(path.as_bytes(), false);
            let Choice::Local(name) = choice else {
                panic!("{text} {path}: {choice:?}");
            };
            assert_eq!(String::from_utf8_lossy(&name), expected, "{text} {path}");
        };
        let (file, mapped) = ("/users/me/.aws/credentials", "/tmp/standin-$x/credentials");
        check("{}", file, mapped);
        check("{}", "/users/me/.aws", "/tmp/standin-$x");
        check("{}", "/users/me/.awsome/x", "/users/me/.awsome/x");
        check("feature: {fs: local}", file, mapped);
        check("magic: {aws: false}", file, file);
        check("feature: {env: false}", file, file);
        check("feature: {fs: {local: '/\\.aws/'}}", file, file);
        check("feature: {fs: {local: '^/users/me'}}", file, mapped);
        check(
            "feature: {fs: {mapping: {'^/users/me/.aws/': '/tmp/mine/'}}}",
            file,
            "/tmp/mine/credentials",
        );
    }

    #[test]
    fn mounted_volumes_are_the_targets_wherever_they_are() {
        let choose = |text: &str| {
            let resolved = resolve(text);
            let rules = FileRules::new(&resolved.settings.feature.fs, &surroundings()).unwrap();
            let choice = rules.choose(b"/tmp/my config/a.yaml", false);
            !matches!(choice, Choice::Local(_))
        };
        assert!(choose("{}"));
        assert!(choose("feature: {fs: localwithoverrides}"));
        assert!(!choose(
            "{magic: {auto_mount: false}, feature: {fs: localwithoverrides}}"
        ));
        assert!(!choose("feature: {fs: {local: '^/tmp/'}}"));
    }

    #[test]
    fn volumes_are_writable_if_files_of_the_target_are() {
        let choose = |text: &str| {
            let resolved = resolve(text);
            let rules = FileRules::new(&resolved.settings.feature.fs, &surroundings()).unwrap();
            let choice = rules.choose(b"/tmp/my config/a.yaml", true);
            matches!(choice, Choice::Remote(_))
        };
        assert!(choose("feature: {fs: write}"));
        assert!(!choose("feature: {fs: read}"));
    }

    #[test]
    fn mounts_with_local_folders_are_no_volumes() {
        let is_one = |mount: &str| is_volume(mount, &surroundings());
        for mount in [
            "/data",
            "/etc/shop",
            "/users/me/.cache",
            "/var/lib/x",
            "/tmp/x",
        ] {
            assert!(is_one(mount), "{mount}");
        }
        let machine = [
            "/",
            "/users",
            "/users/me",
            "/tmp",
            "/var",
            "/usr",
            "/run",
            "/boot/efi",
            "/proc/x",
        ];
        for mount in machine {
            assert!(!is_one(mount), "{mount}");
        }
    }

    #[test]
    fn added_values_name_their_bundle() {
        let resolved = resolve("feature: {env: {unset_local: X}}");
        let effective = resolved.effective();
        let reason = |key: &str| {
            let found = effective.iter().find(|effective| effective.key == key);
            found.unwrap().reason()
        };
        assert_eq!(
            reason("feature.env.unset_local"),
            "test:1:30, added to by magic.aws, magic.proxy"
        );
        assert_eq!(reason("feature.fs.read_only"), "added by magic.auto_mount");
        assert_eq!(reason("feature.hostname"), "default");
        assert_eq!(resolve("magic: false").settings.feature, {
            let mut plain = Settings::default().feature;
            plain.magic = crate::settings::MagicSettings::default();
            plain
        });
    }
}
