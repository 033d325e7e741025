//! The token of the agent's service account. The kubelet replaces its file before the token expires.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use http::HeaderValue;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::error::{Error, Result};

/// How often the file is checked, at most. A check only asks for the time of the last change.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The credential in a file that changes.
pub(super) struct TokenFile {
    path: PathBuf,
    current: Mutex<Current>,
}

struct Current {
    /// `Bearer` and the token. Marked as sensitive, so that it is not shown.
    value: HeaderValue,
    changed: Option<SystemTime>,
    next_check: Instant,
}

impl TokenFile {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let current = Current {
            value: read(path)?,
            changed: change_time(path),
            next_check: Instant::now() + CHECK_INTERVAL,
        };
        Ok(Self {
            path: path.to_owned(),
            current: Mutex::new(current),
        })
    }

    /// The value of the header `Authorization`.
    pub(super) fn current(&self) -> Result<HeaderValue> {
        let mut current = self.current.lock();
        let now = Instant::now();
        if now >= current.next_check {
            current.next_check = now + CHECK_INTERVAL;
            let changed = change_time(&self.path);
            if changed.is_none() || changed != current.changed {
                current.value = read(&self.path)?;
                current.changed = changed;
            }
        }
        Ok(current.value.clone())
    }

    /// The API server has refused the token: the next request reads the file.
    pub(super) fn expire(&self) {
        let mut current = self.current.lock();
        current.changed = None;
        current.next_check = Instant::now();
    }
}

fn change_time(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

fn read(path: &Path) -> Result<HeaderValue> {
    let unreadable = |reason: String| Error::Token {
        path: path.to_owned(),
        reason,
    };
    let token = fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
    let value = HeaderValue::try_from(format!("Bearer {}", token.trim()));
    let mut value = value.map_err(|_| unreadable("it is no token".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_changed_file_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "first\n").unwrap();
        let token = TokenFile::open(&path).unwrap();
        assert_eq!(token.current().unwrap(), "Bearer first");

        // The kubelet replaces the file; the new one has another time.
        fs::write(&path, "second\n").unwrap();
        let file = fs::File::options().append(true).open(&path).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(token.current().unwrap(), "Bearer first");
        tokio::time::advance(CHECK_INTERVAL).await;
        assert_eq!(token.current().unwrap(), "Bearer second");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_token_is_read_again_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "first").unwrap();
        let token = TokenFile::open(&path).unwrap();
        fs::write(&path, "second").unwrap();
        token.expire();
        assert_eq!(token.current().unwrap(), "Bearer second");
    }

    #[test]
    fn errors_and_debug_output_have_no_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "SECRET").unwrap();
        assert!(!format!("{:?}", read(&path).unwrap()).contains("SECRET"));
        fs::write(&path, "SECRET\u{7f}\ntext").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(!error.contains("SECRET"), "{error}");
    }
}
