//! Documents that others read are compared with files, so that a change of them is seen.

use std::path::Path;
use std::{env, fs};

use serde_json::Value;

/// With `UPDATE_GOLDEN` set, the file is written instead.
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
        "{} is not this any more; `UPDATE_GOLDEN=1 cargo test -p operator` writes it:\n{found}",
        path.display()
    );
}
