//! What `magic` adds to settings. Nothing that somebody has set is taken away or replaced: lists and maps get longer.

use crate::files::Surroundings;
use crate::layers::Resolved;
use crate::settings::{FileMode, NamePattern, RegexText};

/// Variables that choose a profile, or are credentials. That of a region says nothing about who one is.
const AWS: &[&str] = &[
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
];

const PROXY: &[&str] = &[
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "FTP_PROXY",
    "NO_PROXY",
];

/// Mounts that every container or every machine has, which are no volumes of anybody.
const NO_VOLUMES: &[&str] = &[
    "/proc",
    "/sys",
    "/dev",
    "/etc/hosts",
    "/etc/hostname",
    "/etc/resolv.conf",
    "/run/.containerenv",
    "/run/secrets",
    "/run/credentials",
    "/run/lock",
    "/run/user",
    "/boot",
    "/snap",
];

/// What programs have here wherever they run. A mount that holds one of them is a part of a machine, and no volume.
const HELD: &[&str] = &["/usr", "/lib", "/bin", "/nix", "/run", "/tmp", "/var/tmp"];

/// What bundles need to know.
#[derive(Debug, Clone, Default)]
pub struct MagicSurroundings {
    /// Where volumes are mounted at the target.
    pub mounts: Vec<String>,
}

impl Resolved {
    /// Adds what bundles add, and remembers which did.
    pub fn add_magic(&mut self, surroundings: &Surroundings, magic: &MagicSurroundings) {
        let is_on = |of: fn(&crate::settings::MagicSettings) -> bool| {
            of(&self.settings.magic) && of(&self.settings.feature.magic)
        };
        let (aws, auto_mount, proxy) = (
            is_on(|magic| magic.aws),
            is_on(|magic| magic.auto_mount),
            is_on(|magic| magic.proxy),
        );
        if aws {
            self.add_aws(surroundings);
        }
        if proxy && self.settings.feature.network.outgoing.tcp {
            self.unset_local("magic.proxy", PROXY);
        }
        if auto_mount && self.settings.feature.fs.mode != FileMode::Local {
            self.add_mounts(&magic.mounts, surroundings);
        }
    }

    fn add_aws(&mut self, surroundings: &Surroundings) {
        const BUNDLE: &str = "magic.aws";
        if !self.settings.feature.env.enabled {
            return;
        }
        self.unset_local(BUNDLE, AWS);
        let home = surroundings.home.as_deref();
        let home = home.and_then(|home| std::str::from_utf8(home).ok());
        let Some(home) = home else { return };
        let home = regex::escape(home.trim_end_matches('/'));
        // Tools keep other things beside these, which they have to be able to write.
        let pattern = format!("^{home}/\\.aws/(config|credentials|sso)(/|$)");
        self.settings
            .feature
            .fs
            .not_found
            .0
            .push(RegexText(pattern));
        self.origins.add("feature.fs.not_found", BUNDLE);
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
        // Who writes at the target writes to its volumes, too.
        let (list, key) = match files.mode {
            FileMode::Write => (&mut files.read_write, "feature.fs.read_write"),
            _ => (&mut files.read_only, "feature.fs.read_only"),
        };
        list.0.extend(patterns);
        self.origins.add(key, "magic.auto_mount");
    }
}

/// Whether something mounted there was put there by somebody, and nothing that the process has here is in it.
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
    let held = HELD.iter().map(|path| path.as_bytes());
    let mut held = held.chain(own.map(Vec::as_slice));
    let mount = mount.as_bytes();
    mount.starts_with(b"/")
        && mount != b"/"
        && !NO_VOLUMES.iter().any(|of| is_below(mount, of.as_bytes()))
        && !held.any(|path| is_below(path, mount))
}

/// The places of mounts in `/proc/<pid>/mountinfo`.
pub fn mounts_in(mountinfo: &str) -> Vec<String> {
    let places = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    places
        .map(|place| {
            place
                .replace("\\040", " ")
                .replace("\\011", "\t")
                .replace("\\134", "\\")
        })
        .collect()
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
            mounts: mounts_in(
                "1 0 0:1 / / rw - overlay o rw\n2 1 0:2 / /proc rw - proc p rw\n3 1 0:3 /a /tmp/my\\040config ro - ext4 d ro\n\
                 4 1 0:4 / /dev/shm rw - tmpfs t rw\n5 1 0:5 / /etc/hosts rw - ext4 d rw",
            ),
        };
        resolved.add_magic(&surroundings(), &magic);
        resolved
    }

    fn environment(resolved: &Resolved) -> String {
        let rules = EnvRules::new(&resolved.settings.feature.env, &EnvFile::default()).unwrap();
        let pairs = |text: &str| {
            let pairs = text.split(' ').filter_map(|pair| pair.split_once('='));
            pairs
                .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
                .collect::<Vec<_>>()
        };
        let target = pairs("AWS_ROLE_ARN=theirs AWS_ACCESS_KEY_ID=theirs");
        let local =
            pairs("AWS_PROFILE=mine AWS_ROLE_ARN=mine AWS_REGION=mine https_proxy=mine X=1");
        let environment = rules.apply(target, local);
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
    fn the_users_own_settings_stay_and_come_first() {
        let resolved = resolve("feature: {env: {override: {AWS_PROFILE: chosen}, unset_local: X}}");
        assert!(environment(&resolved).contains("AWS_PROFILE=chosen"));
        assert!(!environment(&resolved).contains("X=1"));
        let rules = FileRules::new(&resolved.settings.feature.fs, &surroundings()).unwrap();
        let is_hidden = |path: &str| rules.choose(path.as_bytes(), false) == Choice::NotFound;
        assert!(is_hidden("/users/me/.aws/credentials"));
        assert!(is_hidden("/users/me/.aws/config"));
        assert!(is_hidden("/users/me/.aws/sso/cache/x"));
        assert!(!is_hidden("/users/me/.aws/cli/cache/x"));
        assert!(!is_hidden("/users/you/.aws/config"));
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
    fn who_writes_at_the_target_writes_to_its_volumes() {
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
    fn what_holds_the_process_is_no_volume() {
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
    fn what_was_added_is_told_by_whom() {
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
