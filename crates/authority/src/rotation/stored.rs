//! The state as the data of a Secret.
//!
//! | key | content |
//! |---|---|
//! | `ca.crt`, `ca.key` | the authority that signs, also one that an administrator has stored |
//! | `next.crt`, `next.key` | the next authority, also one that an administrator has stored |
//! | `previous.crt` | the certificates of previous authorities |
//! | `rotation.json` | what the certificates do not say, by their fingerprints |

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{Next, Previous, Trust};
use crate::{Authority, Error, Facts, pem};

const SIGNING: [&str; 2] = ["ca.crt", "ca.key"];
const NEXT: [&str; 2] = ["next.crt", "next.key"];
const PREVIOUS: &str = "previous.crt";
const NOTES: &str = "rotation.json";

/// By the fingerprint of an authority. What is missing was stored by an administrator, or is not known.
type Notes = BTreeMap<String, Note>;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Note {
    generated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    lifetime_seconds: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
}

impl Trust {
    /// Reads the data of a Secret. There is nothing if it has neither the certificate nor the key of an authority.
    pub fn from_data(data: &BTreeMap<String, Vec<u8>>) -> Result<Option<Self>, Error> {
        let Some(signing) = authority(data, SIGNING)? else {
            return Ok(None);
        };
        let notes = notes(data)?;
        let note = note(&notes, signing.facts());
        Ok(Some(Self {
            is_generated: note.generated,
            lifetime: SignedDuration::from_secs(note.lifetime_seconds.unwrap_or(0)),
            next: next(data, &notes)?,
            previous: previous(data, &notes)?,
            signing,
        }))
    }

    /// All data of the Secret. What it contained otherwise is obsolete.
    pub fn to_data(&self) -> BTreeMap<String, Vec<u8>> {
        let mut data = BTreeMap::new();
        let mut add = |key: &str, text: String| data.insert(key.to_owned(), text.into_bytes());
        add(SIGNING[0], self.signing.certificate_pem().to_owned());
        add(SIGNING[1], self.signing.key_pem().to_owned());
        if let Some(next) = self.next() {
            add(NEXT[0], next.certificate_pem().to_owned());
            add(NEXT[1], next.key_pem().to_owned());
        }
        if !self.previous.is_empty() {
            let certificates = self.previous.iter();
            let certificates = certificates.map(|previous| previous.certificate_pem.as_str());
            add(PREVIOUS, certificates.collect());
        }
        add(NOTES, serde_json::json!(self.notes()).to_string());
        data
    }

    fn notes(&self) -> Notes {
        let mut notes = Notes::new();
        for previous in &self.previous {
            let note = Note {
                until: Some(previous.until.to_string()),
                ..Note::default()
            };
            notes.insert(previous.facts.fingerprint.clone(), note);
        }
        if let Some(next) = &self.next {
            let note = notes.entry(next.authority.facts().fingerprint.clone());
            let note = note.or_default();
            note.generated = next.is_generated;
            note.since = next.since.map(|since| since.to_string());
        }
        let note = notes.entry(self.signing.facts().fingerprint.clone());
        let note = note.or_default();
        note.generated = self.is_generated;
        note.lifetime_seconds = Some(self.lifetime.as_secs());
        notes
    }
}

fn notes(data: &BTreeMap<String, Vec<u8>>) -> Result<Notes, Error> {
    match data.get(NOTES) {
        Some(text) => serde_json::from_slice(text).map_err(|error| Error::Notes(error.to_string())),
        None => Ok(Notes::new()),
    }
}

fn note(notes: &Notes, facts: &Facts) -> Note {
    notes.get(&facts.fingerprint).cloned().unwrap_or_default()
}

fn time(text: Option<&str>) -> Result<Option<Timestamp>, Error> {
    text.map(str::parse)
        .transpose()
        .map_err(|error: jiff::Error| Error::Notes(error.to_string()))
}

fn next(data: &BTreeMap<String, Vec<u8>>, notes: &Notes) -> Result<Option<Next>, Error> {
    let Some(authority) = authority(data, NEXT)? else {
        return Ok(None);
    };
    let note = note(notes, authority.facts());
    Ok(Some(Next {
        is_generated: note.generated,
        since: time(note.since.as_deref())?,
        authority,
    }))
}

fn previous(data: &BTreeMap<String, Vec<u8>>, notes: &Notes) -> Result<Vec<Previous>, Error> {
    let certificates = pem::certificates(text(data, PREVIOUS)?)
        .map_err(|error| error.stored(PREVIOUS))?
        .into_iter()
        .map(|certificate| {
            let facts = Facts::from_der(&certificate)?;
            let until = time(note(notes, &facts).until.as_deref())?;
            Ok(Previous {
                certificate_pem: pem::encode_certificate(&certificate),
                // It has signed nothing that lives longer.
                until: until.unwrap_or(facts.not_after),
                facts,
            })
        });
    certificates
        .collect::<Result<_, Error>>()
        .map_err(|error| error.stored(PREVIOUS))
}

/// The authority of two keys of the Secret, which are both there or both missing.
fn authority(
    data: &BTreeMap<String, Vec<u8>>,
    [certificate, key]: [&'static str; 2],
) -> Result<Option<Authority>, Error> {
    match [text(data, certificate)?, text(data, key)?] {
        ["", ""] => Ok(None),
        ["", _] => Err(Error::Missing(certificate)),
        [_, ""] => Err(Error::Missing(key)),
        [pem, key] => Authority::from_pem(pem, key)
            .map(Some)
            .map_err(|error| error.stored(certificate)),
    }
}

/// A value without the space around it, empty if it is missing.
fn text<'a>(data: &'a BTreeMap<String, Vec<u8>>, key: &'static str) -> Result<&'a str, Error> {
    let value = data.get(key).map(Vec::as_slice).unwrap_or_default();
    let text = std::str::from_utf8(value).map_err(|_| Error::NotText(key))?;
    Ok(text.trim())
}
