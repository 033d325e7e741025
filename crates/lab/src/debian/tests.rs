//! Builds root filesystems from test packages.

use super::*;

/// Builds a package from paths and contents with `dpkg-deb`.
fn package(folder: &Path, name: &str, files: &[(&str, &str)]) -> PathBuf {
    let source = folder.join(name);
    let control = format!(
        "Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: test\nDescription: none\n"
    );
    for (path, content) in [("DEBIAN/control", control.as_str())].iter().chain(files) {
        let path = source.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let archive = folder.join(format!("{name}_1_all.deb"));
    let mut command = Command::new("dpkg-deb");
    command.args(["--build", "--root-owner-group"]);
    output_of(command.arg(&source).arg(&archive)).unwrap();
    archive
}

fn named(name: &str) -> Package {
    Package {
        name: name.to_owned(),
        version: "1".to_owned(),
        architecture: "all".to_owned(),
        file_name: format!("{name}_1_all.deb"),
        size: 1,
        checksum: "SHA256:1".to_owned(),
    }
}

#[test]
fn packages_of_both_layouts_are_merged_into_usr() {
    let folder = tempfile::tempdir().unwrap();
    let archives = [
        package(
            folder.path(),
            "before-the-merge",
            &[("bin/one", "1"), ("usr/share/doc/one/changelog", "long")],
        ),
        package(folder.path(), "after-the-merge", &[("usr/bin/two", "2")]),
    ];
    let root = folder.path().join("root");
    RootFilesystem::new(["unused"])
        .unpack(&archives, &root)
        .unwrap();
    complete(&root).unwrap();

    assert_eq!(
        fs::read_link(root.join("bin")).unwrap(),
        Path::new("usr/bin")
    );
    assert_eq!(fs::read_to_string(root.join("usr/bin/one")).unwrap(), "1");
    assert_eq!(fs::read_to_string(root.join("bin/two")).unwrap(), "2");
    assert!(!root.join("usr/share/doc").exists());
    let mode = fs::metadata(root.join("tmp")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o1777);
}

#[test]
fn alternatives_are_linked_unless_a_package_ships_the_name() {
    let folder = tempfile::tempdir().unwrap();
    let archive = package(
        folder.path(),
        "alternatives",
        &[
            ("usr/sbin/iptables-nft", "nft"),
            ("usr/bin/dash", "dash"),
            ("usr/bin/mawk", "mawk"),
            ("usr/bin/awk", "shipped"),
        ],
    );
    let root = folder.path().join("root");
    RootFilesystem::new(["unused"])
        .unpack(&[archive], &root)
        .unwrap();
    complete(&root).unwrap();

    let content = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    assert_eq!(content("sbin/iptables"), "nft");
    assert_eq!(content("bin/sh"), "dash");
    assert_eq!(content("bin/awk"), "shipped");
    assert!(!root.join("usr/sbin/ip6tables").is_symlink());
}

#[test]
fn excluded_packages_are_left_out_unless_requested_by_name() {
    let root = RootFilesystem::new(["python3", "tar"]).without_packages(["perl", "libllvm*"]);
    for name in ["perl", "libllvm14", "dpkg"] {
        assert!(root.is_excluded(&named(name)), "{name}");
    }
    for name in ["perl-base", "libc6", "tar"] {
        assert!(!root.is_excluded(&named(name)), "{name}");
    }
}

#[test]
fn the_key_depends_on_everything_that_determines_the_files() {
    let root = RootFilesystem::new(["python3"]);
    let packages = [named("python3"), named("libc6")];
    let key = root.key(&packages);
    assert_eq!(key, root.clone().key(&packages));

    let mut newer = packages.clone();
    newer[1].checksum = "SHA256:2".to_owned();
    assert_ne!(key, root.key(&newer));
    assert_ne!(key, root.key(&packages[..1]));
    assert_ne!(key, root.clone().without_paths(["./usr/x"]).key(&packages));
    assert_ne!(key, root.clone().run_inside(["true"]).key(&packages));
}

#[test]
fn the_major_version_of_a_candidate_is_parsed() {
    let policy = |version: &str| format!("nodejs:\n  Installed: (none)\n  Candidate: {version}\n");
    for (version, expected) in [
        ("18.19.0+dfsg-6~deb12u2", Some(18)),
        ("12.22.9~dfsg-1ubuntu3", Some(12)),
        ("1:15.2-1", Some(15)),
        ("(none)", None),
    ] {
        assert_eq!(major_of_candidate(&policy(version)), expected, "{version}");
    }
    assert_eq!(major_of_candidate(""), None);
}
