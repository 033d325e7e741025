//! Tests with real repositories: a working repository, and a bare one for the charts.

use tempfile::TempDir;

use super::*;

struct Repositories {
    folder: TempDir,
}

impl Repositories {
    fn new() -> Self {
        let repositories = Repositories {
            folder: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(repositories.work()).unwrap();
        git(&repositories.work(), &["init", "--quiet", "-b", "main"]).unwrap();
        for setting in ["user.name=Anna", "user.email=anna@example.com"] {
            let (key, value) = setting.split_once('=').unwrap();
            git(&repositories.work(), &["config", key, value]).unwrap();
        }
        let bare = repositories.remote();
        git(
            repositories.folder.path(),
            &["init", "--quiet", "--bare", "-b", "main", &bare],
        )
        .unwrap();
        repositories
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

    /// Runs git in the repository of charts.
    fn remote_git(&self, arguments: &[&str]) -> String {
        git(Path::new(&self.remote()), arguments).unwrap()
    }

    fn files(&self, revision: &str) -> Vec<String> {
        let listed = self.remote_git(&["ls-tree", "-r", "--name-only", revision]);
        listed.lines().map(str::to_owned).collect()
    }
}

#[test]
fn charts_are_those_of_the_tagged_commit_and_nothing_else() {
    let repositories = Repositories::new();
    repositories.write("charts/README.md", "read me\n");
    repositories.write("charts/operator/old.yaml", "old\n");
    repositories.release("0.1.0");
    // Later changes must not be published.
    repositories.write("charts/operator/later.yaml", "later\n");
    git(&repositories.work(), &["add", "--all"]).unwrap();
    git(&repositories.work(), &["commit", "--quiet", "-m", "Later"]).unwrap();
    repositories.write("charts/operator/uncommitted.yaml", "uncommitted\n");

    repositories.push("0.1.0").unwrap();
    let expected = ["README.md", "operator/Chart.yaml", "operator/old.yaml"];
    assert_eq!(repositories.files("main"), expected);
    assert_eq!(repositories.files("0.1.0"), expected);
    let message = repositories.remote_git(&["log", "-1", "--format=%an: %B", "main"]);
    let commit = git(&repositories.work(), &["rev-parse", "0.1.0"]).unwrap();
    assert_eq!(
        message,
        format!("Anna: Release 0.1.0\n\nSource-Commit: {commit}")
    );

    // The next release deletes files that no longer exist.
    fs::remove_file(repositories.work().join("charts/operator/old.yaml")).unwrap();
    fs::remove_file(repositories.work().join("charts/operator/uncommitted.yaml")).unwrap();
    repositories.release("0.2.0");
    repositories.push("0.2.0").unwrap();
    let expected = ["README.md", "operator/Chart.yaml", "operator/later.yaml"];
    assert_eq!(repositories.files("main"), expected);
    assert_eq!(
        repositories.remote_git(&["rev-list", "--count", "main"]),
        "2"
    );
}

#[test]
fn pushing_again_changes_nothing() {
    let repositories = Repositories::new();
    repositories.release("0.1.0");
    repositories.push("0.1.0").unwrap();
    let before = repositories.remote_git(&["rev-parse", "main", "0.1.0"]);
    repositories.push("0.1.0").unwrap();
    assert_eq!(
        repositories.remote_git(&["rev-parse", "main", "0.1.0"]),
        before
    );
}

#[test]
fn an_older_release_is_not_pushed() {
    let repositories = Repositories::new();
    repositories.release("0.1.0");
    repositories.release("0.2.0");
    repositories.push("0.2.0").unwrap();
    let error = repositories.push("0.1.0").unwrap_err();
    assert!(error.to_string().contains("has 0.2.0 already"), "{error:#}");
}

#[test]
fn commits_of_others_are_not_overwritten() {
    let repositories = Repositories::new();
    repositories.release("0.1.0");
    repositories.push("0.1.0").unwrap();
    let clone = repositories.folder.path().join("clone");
    let clone_text = clone.display().to_string();
    git(
        repositories.folder.path(),
        &["clone", "--quiet", &repositories.remote(), &clone_text],
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

    repositories.release("0.2.0");
    let error = repositories.push("0.2.0").unwrap_err();
    assert!(error.to_string().contains("By hand (Eve)"), "{error:#}");
    push(&repositories.work(), &repositories.remote(), "0.2.0", true).unwrap();
    assert_eq!(repositories.files("main"), ["operator/Chart.yaml"]);
}

#[test]
fn a_published_tag_does_not_change() {
    let repositories = Repositories::new();
    repositories.release("0.1.0");
    repositories.push("0.1.0").unwrap();
    git(&repositories.work(), &["tag", "--delete", "0.1.0"]).unwrap();
    repositories.write("charts/operator/more.yaml", "more\n");
    repositories.write(
        "charts/operator/Chart.yaml",
        "version: 0.1.0\nappVersion: 0.1.0\n\n",
    );
    git(&repositories.work(), &["add", "--all"]).unwrap();
    git(&repositories.work(), &["commit", "--quiet", "-m", "Again"]).unwrap();
    git(&repositories.work(), &["tag", "0.1.0"]).unwrap();
    let error = repositories.push("0.1.0").unwrap_err();
    assert!(
        error.to_string().contains("with other content"),
        "{error:#}"
    );
    assert_eq!(repositories.files("main"), ["operator/Chart.yaml"]);
}

#[test]
fn a_tag_must_exist_and_match_the_charts_version() {
    let repositories = Repositories::new();
    repositories.release("0.1.0");
    let error = repositories.push("0.9.0").unwrap_err();
    assert_eq!(error.to_string(), "there is no tag 0.9.0 here");
    git(&repositories.work(), &["tag", "0.9.0"]).unwrap();
    let error = repositories.push("0.9.0").unwrap_err();
    assert!(error.to_string().contains("not 0.9.0"), "{error:#}");
}
