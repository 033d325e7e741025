//! Tests with real repositories.

use std::fs;

use tempfile::TempDir;

use super::*;

/// A repository whose main branch has releases, and changes between them.
struct Repository(TempDir);

impl Repository {
    fn new() -> Self {
        let repository = Repository(tempfile::tempdir().unwrap());
        repository.git(&["init", "--quiet", "-b", "main"]);
        repository.git(&["config", "user.name", "Anna"]);
        repository.git(&["config", "user.email", "anna@example.com"]);
        repository.commit("Cargo.toml", "version = \"0.1.0\"\n");
        repository.commit(changelog::PATH, "# Changelog\n");
        repository
    }

    fn git(&self, arguments: &[&str]) -> String {
        git(self.0.path(), arguments).unwrap()
    }

    /// Commits a file, and returns the commit.
    fn commit(&self, path: &str, text: &str) -> String {
        fs::write(self.0.path().join(path), text).unwrap();
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "-m", path]);
        self.git(&["rev-parse", "HEAD"])
    }

    fn release(&self, version: &str) -> String {
        let text = format!("# Changelog\n\n## {version} (2026-01-01)\n\n- A change.\n");
        self.commit(changelog::PATH, &text)
    }

    /// The result for a commit.
    fn check(&self, commit: &str, tag: &str) -> Result<()> {
        self.git(&["checkout", "--quiet", "--detach", commit]);
        let result = check(self.0.path(), tag, "main");
        self.git(&["checkout", "--quiet", "main"]);
        result
    }

    fn refuse(&self, commit: &str, tag: &str, expected: &str) {
        let error = self.check(commit, tag).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn only_the_commit_that_adds_the_section_is_the_release() {
    let repository = Repository::new();
    let before = repository.git(&["rev-parse", "HEAD"]);
    let first = repository.release("0.1.0");
    let later = repository.commit("chart.yaml", "a fix without a fragment\n");
    let second = repository.release("0.2.0");
    let corrected_text = repository.commit(
        changelog::PATH,
        "# Changelog\n\n## 0.2.0 (2026-01-01)\n\n- A corrected change.\n",
    );

    repository.check(&first, "0.1.0").unwrap();
    repository.check(&second, "0.2.0").unwrap();
    let first_is_it = format!("the release commit of 0.1.0 on main is {first}");
    repository.refuse(&before, "0.1.0", &first_is_it);
    repository.refuse(&later, "0.1.0", &first_is_it);
    let second_is_it = format!("the release commit of 0.2.0 on main is {second}");
    repository.refuse(&corrected_text, "0.2.0", &second_is_it);
    repository.refuse(&second, "0.3.0", "no commit of main releases 0.3.0");
}

#[test]
fn a_branch_is_released_by_its_merge() {
    let repository = Repository::new();
    repository.git(&["checkout", "--quiet", "-b", "release"]);
    let on_branch = repository.release("0.1.0");
    repository.refuse(&on_branch, "0.1.0", "merge the release commit first");
    repository.commit("later.txt", "merged before the release\n");
    repository.git(&["merge", "--quiet", "--no-ff", "-m", "Merge", "release"]);
    let merge = repository.git(&["rev-parse", "HEAD"]);
    repository.check(&merge, "0.1.0").unwrap();
    repository.refuse(&on_branch, "0.1.0", &format!("on main is {merge}"));
}

#[test]
fn a_tag_on_another_commit_is_found() {
    let repository = Repository::new();
    let release = repository.release("0.1.0");
    let later = repository.commit("later.txt", "later\n");
    repository.git(&["tag", "0.1.0", &later]);
    repository.refuse(&release, "0.1.0", "move the tag");
    repository.git(&["tag", "--force", "0.1.0", &release]);
    repository.check(&release, "0.1.0").unwrap();
}

#[test]
fn a_clone_without_the_history_is_refused() {
    let repository = Repository::new();
    let release = repository.release("0.1.0");
    let clone = tempfile::tempdir().unwrap();
    let from = format!("file://{}", repository.0.path().display());
    let to = clone.path().display().to_string();
    let folder = Path::new("/");
    git(folder, &["clone", "--quiet", "--depth=1", &from, &to]).unwrap();
    let error = check(clone.path(), "0.1.0", "origin/main").unwrap_err();
    assert!(error.to_string().contains("--unshallow"), "{error}");
    git(clone.path(), &["fetch", "--quiet", "--unshallow"]).unwrap();
    check(clone.path(), "0.1.0", "origin/main").unwrap();
    let error = check(clone.path(), "0.1.0", "main-2").unwrap_err();
    assert!(
        error.to_string().contains("there is no branch main-2"),
        "{error}"
    );
    assert_eq!(git(clone.path(), &["rev-parse", "HEAD"]).unwrap(), release);
}
