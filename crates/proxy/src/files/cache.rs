//! What the target answered a moment ago about names: metadata, access, links, and that there is no such file.
//!
//! Programs ask the same question again and again: for each part of a path, for each place where a module may be. An
//! answer is good for a second. What the session itself changes shows at once: a change by name forgets everything, as
//! it may concern any number of names; a change through a descriptor forgets the names of that file.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use interceptor::Errno;
use protocol::rpc::Metadata;

use super::inodes::{Identity, identity};

/// How many answers are kept. Beyond, old ones go, and if there are none, all.
const MOST: usize = 16 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Question {
    Metadata { follow: bool },
    Access { mode: i32, follow: bool },
    Link,
    Canonical,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    Metadata(Metadata),
    Accessible,
    Link(PathBuf),
    Failed(Errno),
}

#[derive(Debug)]
pub(crate) struct Cache {
    good_for: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    answers: HashMap<PathBuf, HashMap<Question, (Answer, Instant)>>,
    count: usize,
    /// The names under which files are known. Some may be forgotten already.
    names: HashMap<Identity, HashSet<PathBuf>>,
    /// Changes so far. An answer to what was asked before the last one is not kept.
    changes: u64,
}

/// When something was asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    changes: u64,
    at: Instant,
}

impl Cache {
    pub(crate) fn new(good_for: Duration) -> Self {
        Self {
            good_for,
            state: Mutex::default(),
        }
    }

    /// An answer that is still good, or when the target was asked instead.
    pub(crate) fn get(&self, path: &Path, question: &Question) -> Result<Answer, Asked> {
        let state = self.state();
        let found = state
            .answers
            .get(path)
            .and_then(|answers| answers.get(question));
        match found {
            Some((answer, since)) if since.elapsed() < self.good_for => Ok(answer.clone()),
            _ => Err(Asked {
                changes: state.changes,
                at: Instant::now(),
            }),
        }
    }

    pub(crate) fn put(&self, path: &Path, question: Question, answer: Answer, asked: Asked) {
        let mut state = self.state();
        if state.changes != asked.changes {
            return;
        }
        if state.count >= MOST {
            state.make_room(self.good_for);
        }
        if let Answer::Metadata(metadata) = &answer {
            let names = state.names.entry(identity(metadata)).or_default();
            names.insert(path.to_path_buf());
        }
        let answers = state.answers.entry(path.to_path_buf()).or_default();
        if answers.insert(question, (answer, asked.at)).is_none() {
            state.count += 1;
        }
    }

    /// Something was changed by name.
    pub(crate) fn forget(&self) {
        let mut state = self.state();
        state.changes += 1;
        state.clear();
    }

    /// A file was changed, whatever its names are.
    pub(crate) fn forget_file(&self, file: Identity) {
        let mut state = self.state();
        state.changes += 1;
        for name in state.names.remove(&file).unwrap_or_default() {
            let forgotten = state.answers.remove(&name);
            state.count -= forgotten.map_or(0, |answers| answers.len());
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn clear(&mut self) {
        self.answers.clear();
        self.names.clear();
        self.count = 0;
    }

    fn make_room(&mut self, good_for: Duration) {
        let mut count = 0;
        self.answers.retain(|_, answers| {
            answers.retain(|_, (_, since)| since.elapsed() < good_for);
            count += answers.len();
            !answers.is_empty()
        });
        self.count = count;
        let Self { answers, names, .. } = self;
        names.retain(|_, names| {
            names.retain(|name| answers.contains_key(name));
            !names.is_empty()
        });
        if self.count >= MOST {
            self.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: Question = Question::Metadata { follow: true };

    fn metadata(inode: u64) -> Answer {
        Answer::Metadata(Metadata {
            inode,
            ..Metadata::default()
        })
    }

    fn keep(cache: &Cache, path: &str, answer: Answer) {
        let asked = cache.get(Path::new(path), &METADATA).unwrap_err();
        cache.put(Path::new(path), METADATA, answer, asked);
    }

    fn knows(cache: &Cache, path: &str) -> bool {
        cache.get(Path::new(path), &METADATA).is_ok()
    }

    #[test]
    fn an_answer_is_given_again_until_it_is_old() {
        let cache = Cache::new(Duration::from_secs(3600));
        keep(&cache, "/a", Answer::Failed(Errno::ENOENT));
        let answer = cache.get(Path::new("/a"), &METADATA).unwrap();
        assert_eq!(answer, Answer::Failed(Errno::ENOENT));
        let other = Question::Metadata { follow: false };
        assert!(cache.get(Path::new("/a"), &other).is_err());
        let forgetful = Cache::new(Duration::ZERO);
        keep(&forgetful, "/a", metadata(1));
        assert!(!knows(&forgetful, "/a"));
    }

    #[test]
    fn changes_forget() {
        let cache = Cache::new(Duration::from_secs(3600));
        keep(&cache, "/a", metadata(1));
        keep(&cache, "/b", metadata(2));
        cache.forget_file((0, 0, 1));
        assert!(!knows(&cache, "/a"));
        assert!(knows(&cache, "/b"));
        cache.forget();
        assert!(!knows(&cache, "/b"));
    }

    #[test]
    fn an_answer_from_before_a_change_is_not_kept() {
        let cache = Cache::new(Duration::from_secs(3600));
        let asked = cache.get(Path::new("/a"), &METADATA).unwrap_err();
        cache.forget_file((0, 0, 7));
        cache.put(Path::new("/a"), METADATA, metadata(1), asked);
        assert!(!knows(&cache, "/a"));
    }

    #[test]
    fn it_does_not_grow_without_bound() {
        let cache = Cache::new(Duration::from_secs(3600));
        for number in 0..MOST as u64 + 1 {
            keep(&cache, &format!("/{number}"), metadata(number));
        }
        assert_eq!(cache.state().count, 1);
        assert!(knows(&cache, &format!("/{MOST}")));
    }
}
