//! With real repositories: one that is worked in, and a bare one for the charts.

use tempfile::TempDir;

use super::*;

struct World {
    folder: TempDir,
}

impl World {
    fn new() -> Self {
        let world = World {
            folder: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(world.work()).unwrap();
        git(&world.work(), &["init", "--quiet", "-b", "main"]).unwrap();
        for setting in ["user.name=Anna", "user.email=anna@example.com"] {
            let (key, value) = setting.split_once('=').unwrap();
            git(&world.work(), &["config", key, value]).unwrap();
        }
        let bare = world.remote();
        git(
            world.folder.path(),
            &["init", "--quiet", "--bare", "-b", "main", &bare],
        )
        .unwrap();
        world
    }

    fn work(&self) -> std::path::PathBuf {
        self.folder.path().join("work")
    }

    fn remote(&self) -> String {
        self.folder.path().join("charts.git").display().to_string()
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.work().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A release commit and its tag.
    fn release(&self, version: &str) {
        let chart = format!("version: {version}\nappVersion: {version}\n");
        self.write("charts/operator/Chart.yaml", &chart);
        self.write("secret-plans.md", "for ourselves\n");
        git(&self.work(), &["add", "--all"]).unwrap();
        git(&self.work(), &["commit", "--quiet", "-m", "Release"]).unwrap();
        git(&self.work(), &["tag", version]).unwrap();
    }

    fn push(&self, tag: &str) -> Result<()> {
        push(&self.work(), &self.remote(), tag, false)
    }

    /// What others see in the repository of charts.
    fn seen(&self, what: &[&str]) -> String {
        git(Path::new(&self.remote()), what).unwrap()
    }

    fn files(&self, of: &str) -> Vec<String> {
        let listed = self.seen(&["ls-tree", "-r", "--name-only", of]);
        listed.lines().map(str::to_owned).collect()
    }
}

#[test]
fn charts_are_those_of_the_tagged_commit_and_nothing_else() {
    let world = World::new();
    world.write("charts/README.md", "read me\n");
    world.write("charts/operator/old.yaml", "old\n");
    world.release("0.1.0");
    // What comes after the release commit stays here.
    world.write("charts/operator/later.yaml", "later\n");
    git(&world.work(), &["add", "--all"]).unwrap();
    git(&world.work(), &["commit", "--quiet", "-m", "Later"]).unwrap();
    world.write("charts/operator/uncommitted.yaml", "uncommitted\n");

    world.push("0.1.0").unwrap();
    let expected = ["README.md", "operator/Chart.yaml", "operator/old.yaml"];
    assert_eq!(world.files("main"), expected);
    assert_eq!(world.files("0.1.0"), expected);
    let message = world.seen(&["log", "-1", "--format=%an: %B", "main"]);
    let commit = git(&world.work(), &["rev-parse", "0.1.0"]).unwrap();
    assert_eq!(
        message,
        format!("Anna: Release 0.1.0\n\nSource-Commit: {commit}")
    );

    // The next release takes away what is no longer there.
    fs::remove_file(world.work().join("charts/operator/old.yaml")).unwrap();
    fs::remove_file(world.work().join("charts/operator/uncommitted.yaml")).unwrap();
    world.release("0.2.0");
    world.push("0.2.0").unwrap();
    let expected = ["README.md", "operator/Chart.yaml", "operator/later.yaml"];
    assert_eq!(world.files("main"), expected);
    assert_eq!(world.seen(&["rev-list", "--count", "main"]), "2");
}

#[test]
fn pushing_again_changes_nothing() {
    let world = World::new();
    world.release("0.1.0");
    world.push("0.1.0").unwrap();
    let before = world.seen(&["rev-parse", "main", "0.1.0"]);
    world.push("0.1.0").unwrap();
    assert_eq!(world.seen(&["rev-parse", "main", "0.1.0"]), before);
}

#[test]
fn an_older_release_does_not_come_back() {
    let world = World::new();
    world.release("0.1.0");
    world.release("0.2.0");
    world.push("0.2.0").unwrap();
    let error = world.push("0.1.0").unwrap_err();
    assert!(error.to_string().contains("has 0.2.0 already"), "{error:#}");
}

#[test]
fn what_others_have_committed_is_not_overwritten() {
    let world = World::new();
    world.release("0.1.0");
    world.push("0.1.0").unwrap();
    let clone = world.folder.path().join("clone");
    let clone_text = clone.display().to_string();
    git(
        world.folder.path(),
        &["clone", "--quiet", &world.remote(), &clone_text],
    )
    .unwrap();
    fs::write(clone.join("README.md"), "by hand\n").unwrap();
    git(&clone, &["add", "--all"]).unwrap();
    let by_hand = [
        "-c",
        "user.name=Eve",
        "-c",
        "user.email=e@e",
        "commit",
        "--quiet",
        "-m",
        "By hand",
    ];
    git(&clone, &by_hand).unwrap();
    git(&clone, &["push", "--quiet"]).unwrap();

    world.release("0.2.0");
    let error = world.push("0.2.0").unwrap_err();
    assert!(error.to_string().contains("By hand (Eve)"), "{error:#}");
    push(&world.work(), &world.remote(), "0.2.0", true).unwrap();
    assert_eq!(world.files("main"), ["operator/Chart.yaml"]);
}

#[test]
fn a_tag_that_is_out_does_not_change() {
    let world = World::new();
    world.release("0.1.0");
    world.push("0.1.0").unwrap();
    git(&world.work(), &["tag", "--delete", "0.1.0"]).unwrap();
    world.write("charts/operator/more.yaml", "more\n");
    world.write(
        "charts/operator/Chart.yaml",
        "version: 0.1.0\nappVersion: 0.1.0\n\n",
    );
    git(&world.work(), &["add", "--all"]).unwrap();
    git(&world.work(), &["commit", "--quiet", "-m", "Again"]).unwrap();
    git(&world.work(), &["tag", "0.1.0"]).unwrap();
    let error = world.push("0.1.0").unwrap_err();
    assert!(
        error.to_string().contains("with other content"),
        "{error:#}"
    );
    assert_eq!(world.files("main"), ["operator/Chart.yaml"]);
}

#[test]
fn a_tag_must_be_there_and_be_the_charts_version() {
    let world = World::new();
    world.release("0.1.0");
    let error = world.push("0.9.0").unwrap_err();
    assert_eq!(error.to_string(), "there is no tag 0.9.0 here");
    git(&world.work(), &["tag", "0.9.0"]).unwrap();
    let error = world.push("0.9.0").unwrap_err();
    assert!(error.to_string().contains("not 0.9.0"), "{error:#}");
}
