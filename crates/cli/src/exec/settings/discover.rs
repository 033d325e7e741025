//! The configuration file that is used when none is named.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::environment::CONFIG_FILE;

/// Where a configuration file may lie in a working directory, first come first served.
const FOLDERS_AND_NAMES: &[&str] = &[".standin/standin", "standin", ".mirrord/mirrord"];
const ENDINGS: &[&str] = &["json", "yaml", "yml", "toml"];

/// The file that the environment names, or the first that is in the working directory. Says which one it is.
pub(crate) fn discover(directory: &Path, say: impl Fn(&str)) -> Result<Option<PathBuf>> {
    let named = env::var_os(CONFIG_FILE).filter(|file| !file.is_empty());
    if let Some(named) = named.map(PathBuf::from) {
        ensure!(
            named.is_file(),
            "{CONFIG_FILE} names {}, which is not there",
            named.display()
        );
        say(&format!(
            "settings from {} ({CONFIG_FILE})",
            named.display()
        ));
        return Ok(Some(named));
    }
    let found = candidates().find(|candidate| directory.join(candidate).is_file());
    if let Some(found) = &found {
        say(&format!("settings from {}", found.display()));
    }
    Ok(found.map(|found| directory.join(found)))
}

fn candidates() -> impl Iterator<Item = PathBuf> {
    FOLDERS_AND_NAMES.iter().flat_map(|name| {
        let with = move |ending: &&str| PathBuf::from(format!("{name}.{ending}"));
        ENDINGS.iter().map(with)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_first_file_in_the_order_of_places_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let found = || discover(folder.path(), |_| {}).unwrap();
        assert_eq!(found(), None);
        // From the last to the first, so each one wins over those before.
        for name in [
            ".mirrord/mirrord.toml",
            ".mirrord/mirrord.json",
            "standin.yaml",
            ".standin/standin.yml",
            ".standin/standin.json",
        ] {
            let file = folder.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "").unwrap();
            assert_eq!(found(), Some(file));
        }
    }
}
