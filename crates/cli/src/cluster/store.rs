//! The logins of this user: `~/.standin/hubs/HOST.json`.
//!
//! A file has a token, and whom to trust with it. So only this user may read or write the folder and its files; others are
//! refused and never changed.

use std::env;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::address::HubAddress;
use super::token::Token;
use super::trust::Pin;
use crate::api::folder;
use crate::environment::HOME;

const EXTENSION: &str = "json";

/// The folder of logins.
#[derive(Debug, Clone)]
pub(super) struct Store(PathBuf);

/// What is known of a hub, and how to get a token for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Login {
    #[serde(with = "as_url")]
    pub(super) address: HubAddress,
    /// In PEM: the authorities that sign the hub's certificate. Without them, those of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) authorities: Option<String>,
    /// The pin of the hub's key, which is trusted with any certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pin: Option<Pin>,
    pub(super) credential: Credential,
}

/// Where the token for a hub is from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub(super) enum Credential {
    Token {
        token: Token,
    },
    /// The token of a context of the hub's cluster, which is read again each time.
    KubeContext {
        context: String,
        /// The file that was named at the login, if it was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kubeconfig: Option<PathBuf>,
    },
}

mod as_url {
    use serde::{Deserialize as _, Deserializer, Serializer, de};

    use super::HubAddress;

    pub(super) fn serialize<S: Serializer>(
        address: &HubAddress,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&address.url())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<HubAddress, D::Error> {
        let url = String::deserialize(deserializer)?;
        url.parse().map_err(de::Error::custom)
    }
}

impl Store {
    /// The user's folder, which is safe if it exists.
    pub(super) fn open() -> Result<Self> {
        let home = env::var_os(HOME).filter(|home| !home.is_empty());
        let home =
            home.with_context(|| format!("{HOME} is not set, so there is no folder for logins"))?;
        Self::at(Path::new(&home).join(".standin/hubs"))
    }

    fn at(path: PathBuf) -> Result<Self> {
        let store = Self(path);
        store.check()?;
        Ok(store)
    }

    /// Fails if other users could read or write logins. Returns whether the folder exists.
    fn check(&self) -> Result<bool> {
        let Some(found) = folder::find(&self.0)? else {
            return Ok(false);
        };
        match found.private_problem(folder::user()) {
            None => Ok(true),
            Some(problem) => bail!("{} cannot have your logins: {problem}", self.0.display()),
        }
    }

    fn path(&self, address: &HubAddress) -> PathBuf {
        self.0.join(address.file_name())
    }

    pub(super) fn load(&self, address: &HubAddress) -> Result<Login> {
        match read(&self.path(address))? {
            Some(login) if login.address == *address => Ok(login),
            _ => bail!(
                "you are not logged in to the hub {address}; `standin cluster login {}` does it{}",
                address.url(),
                self.others(address)
            ),
        }
    }

    fn others(&self, address: &HubAddress) -> String {
        let logins = self.all().unwrap_or_default();
        let names: Vec<String> = logins.iter().map(|login| login.address.name()).collect();
        let similar = config::closest(&address.name(), names.iter().map(String::as_str));
        match (similar, names.is_empty()) {
            (Some(similar), _) => format!(". Did you mean {similar}?"),
            (None, false) => format!(". You are logged in to {}", names.join(", ")),
            (None, true) => String::new(),
        }
    }

    /// All logins, in the order of their files.
    pub(super) fn all(&self) -> Result<Vec<Login>> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| self.0.display().to_string())?,
        };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let is_login = |path: &PathBuf| path.extension().is_some_and(|name| name == EXTENSION);
        let mut paths: Vec<PathBuf> = paths.filter(is_login).collect();
        paths.sort();
        let logins = paths.iter().map(|path| read(path));
        logins.filter_map(Result::transpose).collect()
    }

    /// Writes a login. A reader sees the old one or the new one.
    pub(super) fn save(&self, login: &Login) -> Result<()> {
        if !self.check()? {
            let mut builder = DirBuilder::new();
            let created = builder.recursive(true).mode(0o700).create(&self.0);
            created.with_context(|| self.0.display().to_string())?;
            self.check()?;
        }
        let path = self.path(&login.address);
        let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
        let mut text = serde_json::to_string_pretty(login)?;
        text.push('\n');
        let written = write_new(&temporary, &text).and_then(|()| fs::rename(&temporary, &path));
        written.with_context(|| {
            let _ = fs::remove_file(&temporary);
            format!("cannot write {}", path.display())
        })
    }

    /// Deletes a login. Returns whether there was one.
    pub(super) fn remove(&self, address: &HubAddress) -> Result<bool> {
        let path = self.path(address);
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }
}

fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn read(path: &Path) -> Result<Option<Login>> {
    let mut options = OpenOptions::new();
    let opened = options.read(true).custom_flags(libc::O_NOFOLLOW).open(path);
    let mut file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.with_context(|| format!("cannot read {}", path.display()))?,
    };
    ensure_private(&file).with_context(|| path.display().to_string())?;
    let mut text = String::new();
    file.read_to_string(&mut text)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let login = serde_json::from_str(&text).with_context(|| {
        let path = path.display();
        format!("{path} is not a login of this version; delete it and log in again")
    })?;
    Ok(Some(login))
}

fn ensure_private(file: &File) -> Result<()> {
    let metadata = file.metadata()?;
    ensure!(
        metadata.uid() == folder::user(),
        "it belongs to another user (uid {})",
        metadata.uid()
    );
    let mode = metadata.mode() & 0o777;
    ensure!(
        mode & 0o077 == 0,
        "other users can access it (its mode is {mode:o}); log in again after `chmod 600`"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn login(host: &str) -> Login {
        Login {
            address: host.parse().unwrap(),
            authorities: Some("PEM".to_owned()),
            pin: None,
            credential: Credential::Token {
                token: Token::parse("hunter2").unwrap(),
            },
        }
    }

    fn store(parent: &Path) -> Result<Store> {
        Store::at(parent.join("hubs"))
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn logins_are_written_for_this_user_alone_and_read_again() {
        let parent = tempfile::tempdir().unwrap();
        let store = store(parent.path()).unwrap();
        assert!(store.all().unwrap().is_empty());
        let (one, two) = (login("hub.example.com"), login("hub2:7000"));
        store.save(&two).unwrap();
        store.save(&one).unwrap();
        store.save(&one).unwrap();
        assert_eq!(mode(&parent.path().join("hubs")), 0o700);
        assert_eq!(
            mode(&parent.path().join("hubs/hub.example.com.json")),
            0o600
        );
        assert_eq!(store.load(&one.address).unwrap(), one);
        assert_eq!(store.all().unwrap(), [one.clone(), two]);
        let unknown = "hub.exmple.com".parse().unwrap();
        let error = store.load(&unknown).unwrap_err().to_string();
        assert!(error.contains("Did you mean hub.example.com?"), "{error}");
        assert!(store.remove(&one.address).unwrap());
        assert!(!store.remove(&one.address).unwrap());
    }

    #[test]
    fn what_other_users_can_access_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("hubs");
        let one = login("hub");
        store(parent.path()).unwrap().save(&one).unwrap();
        for (folder_mode, file_mode, expected) in [
            (0o700, 0o600, None),
            (0o700, 0o640, Some("chmod 600")),
            (0o750, 0o600, Some("chmod 700")),
            (0o1777, 0o600, Some("chmod 700")),
        ] {
            fs::set_permissions(folder.join("hub.json"), Permissions::from_mode(file_mode))
                .unwrap();
            fs::set_permissions(&folder, Permissions::from_mode(folder_mode)).unwrap();
            let loaded = store(parent.path()).and_then(|store| store.load(&one.address));
            match (loaded, expected) {
                (Ok(loaded), None) => assert_eq!(loaded, one),
                (Err(error), Some(expected)) => {
                    let error = error_chain::error_chain(error.as_ref()).to_string();
                    assert!(error.contains(expected), "{error}");
                    assert!(!error.contains("hunter2"));
                }
                (loaded, _) => panic!("{folder_mode:o} {file_mode:o}: {loaded:?}"),
            }
        }
        let other = parent.path().join("other");
        fs::create_dir(&other).unwrap();
        symlink(&folder, other.join("hubs")).unwrap();
        let error = store(&other).unwrap_err().to_string();
        assert!(error.contains("symbolic link"), "{error}");
    }
}
