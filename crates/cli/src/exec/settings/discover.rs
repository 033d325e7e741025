//! Finds the configuration file if none is named.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::environment::CONFIG_FILE;

/// The paths of configuration files in a working directory, in order of precedence.
const PATHS: &[&str] = &[".standin/standin", "standin", ".mirrord/mirrord"];
const EXTENSIONS: &[&str] = &["json", "yaml", "yml", "toml"];

/// The file that the environment variable names, or the first one in the working directory. `print` gets its name.
pub(crate) fn discover(directory: &Path, print: impl Fn(&str)) -> Result<Option<PathBuf>> {
    let named = env::var_os(CONFIG_FILE).filter(|file| !file.is_empty());
    if let Some(named) = named.map(PathBuf::from) {
        ensure!(
            named.is_file(),
            "{CONFIG_FILE} names {}, which does not exist",
            named.display()
        );
        print(&format!(
            "settings from {} ({CONFIG_FILE})",
            named.display()
        ));
        return Ok(Some(named));
    }
    let found = candidates().find(|candidate| directory.join(candidate).is_file());
    if let Some(found) = &found {
        print(&format!("settings from {}", found.display()));
    }
    Ok(found.map(|found| directory.join(found)))
}

fn candidates() -> impl Iterator<Item = PathBuf> {
    PATHS.iter().flat_map(|path| {
        let with = move |extension: &&str| PathBuf::from(format!("{path}.{extension}"));
        EXTENSIONS.iter().map(with)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_are_found_in_order_of_precedence() {
        let folder = tempfile::tempdir().unwrap();
        let found = || discover(folder.path(), |_| {}).unwrap();
        assert_eq!(found(), None);
        // From the lowest precedence to the highest.
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
