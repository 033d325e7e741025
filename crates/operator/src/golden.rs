//! Compares documents that clients read with golden files, so that a change of them is noticed.

use std::path::Path;
use std::{env, fs};

use serde_json::Value;

/// Compares a document with a golden file. With `UPDATE_GOLDEN` set, the file is written first.
pub(crate) fn check(name: &str, found: &Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("golden")
        .join(name);
    let found = format!("{found:#}\n");
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &found).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "{} differs; `UPDATE_GOLDEN=1 cargo test -p operator` updates it:\n{found}",
        path.display()
    );
}
