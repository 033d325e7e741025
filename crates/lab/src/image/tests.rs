//! Checks image archives with an independent reader.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use sha2::{Digest, Sha256};
use tar::{Archive, EntryType};

use super::*;

/// One entry of a layer, as read from the tar.
#[derive(Debug, PartialEq, Eq)]
struct LayerEntry {
    kind: EntryType,
    mode: u32,
    owner: (u64, u64),
    modified: u64,
    link: Option<PathBuf>,
    content: Vec<u8>,
}

fn parts_of(archive: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut archive = Archive::new(File::open(archive).unwrap());
    let entries = archive.entries().unwrap();
    entries
        .map(|entry| {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            (entry.path().unwrap().to_str().unwrap().to_owned(), content)
        })
        .collect()
}

fn digest(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// Verifies all digests of the archive, and returns its configuration and the entries of its layer.
fn read(archive: &ImageArchive) -> (Value, BTreeMap<PathBuf, LayerEntry>) {
    let parts = parts_of(archive.path());
    let manifest: Value = serde_json::from_slice(&parts["manifest.json"]).unwrap();
    let image = &manifest[0];
    assert_eq!(image["RepoTags"][0], archive.reference());
    let configuration = &parts[image["Config"].as_str().unwrap()];
    assert_eq!(archive.id(), format!("sha256:{}", digest(configuration)));
    assert_eq!(archive.size(), fs::metadata(archive.path()).unwrap().len());
    let layer = &parts[image["Layers"][0].as_str().unwrap()];
    let configuration: Value = serde_json::from_slice(configuration).unwrap();
    assert_eq!(
        configuration["rootfs"]["diff_ids"][0],
        format!("sha256:{}", digest(layer))
    );

    let mut entries = BTreeMap::new();
    let mut layer = Archive::new(layer.as_slice());
    for entry in layer.entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        let header = entry.header();
        let described = LayerEntry {
            kind: header.entry_type(),
            mode: header.mode().unwrap(),
            owner: (header.uid().unwrap(), header.gid().unwrap()),
            modified: header.mtime().unwrap(),
            link: entry.link_name().unwrap().map(|link| link.to_path_buf()),
            content,
        };
        let path = entry.path().unwrap().to_path_buf();
        assert_eq!(entries.insert(path, described), None, "duplicate entry");
    }
    (configuration, entries)
}

fn write_file(path: &Path, content: &str, mode: u32, age_in_seconds: u64) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let modified = SystemTime::now() - Duration::from_secs(age_in_seconds);
    File::open(path).unwrap().set_modified(modified).unwrap();
}

/// The same files each time, created in the order and with the age that the caller chooses.
fn example_folder(parent: &Path, name: &str, backwards: bool, age_in_seconds: u64) -> PathBuf {
    let root = parent.join(name);
    let mut files = vec![
        ("bin/program", "#!/bin/sh\n", 0o755),
        ("etc/settings", "colour = green\n", 0o640),
        ("etc/empty", "", 0o644),
        ("z", "last", 0o4755),
    ];
    if backwards {
        files.reverse();
    }
    for (path, content, mode) in files {
        write_file(&root.join(path), content, mode, age_in_seconds);
    }
    for folder in ["", "bin", "etc"] {
        fs::set_permissions(root.join(folder), fs::Permissions::from_mode(0o755)).unwrap();
    }
    symlink("../etc/settings", root.join("bin/link")).unwrap();
    root
}

fn example_image(folder: &Path) -> Image {
    Image::new("registry.lab/shop/checkout:1")
        .folder(folder, "/")
        .bytes("/etc/passwd", "root:x:0:0::/:/bin/sh\n", 0o644)
        .directory("/tmp", 0o1777)
        .entrypoint(["/bin/program"])
        .command(["--serve"])
        .environment("COLOUR", "blue")
        .environment("COLOUR", "green")
        .user("1000:1000")
        .working_directory("/tmp")
        .stop_signal("SIGTERM")
}

#[test]
fn the_same_sources_give_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let one = example_image(&example_folder(folder.path(), "one", false, 10));
    let two = example_image(&example_folder(folder.path(), "two", true, 100_000));
    let first = one.write(&folder.path().join("one.tar")).unwrap();
    let second = two.write(&folder.path().join("two.tar")).unwrap();
    assert_eq!(first.id(), second.id());
    assert!(fs::read(first.path()).unwrap() == fs::read(second.path()).unwrap());
    assert_eq!(one.inputs_digest().unwrap(), two.inputs_digest().unwrap());

    fs::write(folder.path().join("two/etc/settings"), "colour = red\n").unwrap();
    assert_ne!(one.inputs_digest().unwrap(), two.inputs_digest().unwrap());
}

#[test]
fn the_archive_contains_all_sources() {
    let folder = tempfile::tempdir().unwrap();
    let source = example_folder(folder.path(), "source", false, 10);
    let archive = example_image(&source)
        .write(&folder.path().join("image.tar"))
        .unwrap();
    let (configuration, entries) = read(&archive);

    assert_eq!(
        configuration["config"],
        serde_json::json!({
            "User": "1000:1000",
            "Env": [format!("PATH={DEFAULT_PATH}"), "COLOUR=green"],
            "Entrypoint": ["/bin/program"],
            "Cmd": ["--serve"],
            "WorkingDir": "/tmp",
            "StopSignal": "SIGTERM",
        })
    );
    let paths: Vec<_> = entries.keys().map(|path| path.to_str().unwrap()).collect();
    assert_eq!(
        paths,
        [
            "bin",
            "bin/link",
            "bin/program",
            "etc",
            "etc/empty",
            "etc/passwd",
            "etc/settings",
            "tmp",
            "z"
        ]
    );
    for entry in entries.values() {
        assert_eq!((entry.owner, entry.modified), ((0, 0), 0));
    }
    assert_eq!(entries[Path::new("tmp")].mode, 0o1777);
    assert_eq!(entries[Path::new("z")].mode, 0o4755);
    assert_eq!(entries[Path::new("etc/settings")].mode, 0o640);
    assert_eq!(entries[Path::new("bin/program")].content, b"#!/bin/sh\n");
    assert_eq!(entries[Path::new("bin/link")].kind, EntryType::Symlink);
    assert_eq!(
        entries[Path::new("bin/link")].link,
        Some(PathBuf::from("../etc/settings"))
    );
}

#[test]
fn later_sources_override_earlier_ones() {
    let folder = tempfile::tempdir().unwrap();
    let source = example_folder(folder.path(), "source", false, 10);
    let archive = Image::new("registry.lab/example:1")
        .folder(&source, "/")
        .link("/sbin", "bin")
        .file("/sbin/program", source.join("z"), 0o700)
        .bytes("/etc/settings", "colour = red\n", 0o600)
        .write(&folder.path().join("image.tar"))
        .unwrap();
    let (_, entries) = read(&archive);
    assert_eq!(entries[Path::new("bin/program")].content, b"last");
    assert_eq!(entries[Path::new("bin/program")].mode, 0o700);
    assert_eq!(
        entries[Path::new("etc/settings")].content,
        b"colour = red\n"
    );
    assert!(!entries.contains_key(Path::new("sbin/program")));
}

#[test]
fn long_paths_and_long_links_are_preserved() {
    let folder = tempfile::tempdir().unwrap();
    let long = ["a-rather-long-name-for-a-folder"; 9].join("/");
    let archive = Image::new("registry.lab/example:1")
        .bytes(format!("/{long}/file"), "deep", 0o644)
        .link("/shortcut", format!("/{long}/file"))
        .write(&folder.path().join("image.tar"))
        .unwrap();
    let (_, entries) = read(&archive);
    let deep = PathBuf::from(format!("{long}/file"));
    assert_eq!(entries[&deep].content, b"deep");
    assert_eq!(
        entries[Path::new("shortcut")].link,
        Some(Path::new("/").join(deep))
    );
}

#[test]
fn special_files_are_rejected_and_leave_no_archive() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    fs::create_dir(&source).unwrap();
    let _listener = UnixListener::bind(source.join("socket")).unwrap();
    let output = folder.path().join("image.tar");
    let error = Image::new("registry.lab/example:1")
        .folder(&source, "/")
        .write(&output)
        .unwrap_err();
    assert!(error.to_string().contains("is a socket"), "{error}");
    assert!(error.hint().is_some());
    assert!(!output.exists());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn references_must_be_complete() {
    for reference in [
        "pause",
        "registry.lab/pause",
        "pause:1",
        "registry.lab/Pause:1",
        "registry.lab/:1",
    ] {
        let image = Image::new(reference);
        assert!(
            matches!(image.check_reference(), Err(ImageError::Reference { .. })),
            "{reference}"
        );
    }
    for reference in [
        "registry.lab/pause:1",
        "localhost:5000/shop/checkout:v1.2_x",
    ] {
        Image::new(reference).check_reference().unwrap();
    }
}

#[test]
fn a_cached_image_is_written_once() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::new(folder.path().join("cache"));
    let source = example_folder(folder.path(), "source", false, 10);
    let first = example_image(&source).write_cached(&cache).unwrap();
    let written = fs::metadata(first.path()).unwrap().modified().unwrap();
    let second = example_image(&source).write_cached(&cache).unwrap();
    assert_eq!(first, second);
    assert_eq!(
        fs::metadata(second.path()).unwrap().modified().unwrap(),
        written
    );
    let name = first.path().file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("shop-checkout-1-"), "{name}");
}
