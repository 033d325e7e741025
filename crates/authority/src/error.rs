use jiff::{SignedDuration, Timestamp};

/// Why a certificate, a key or a request cannot be used or made. No message contains a key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("there is no certificate in PEM, which begins with -----BEGIN CERTIFICATE-----")]
    NoCertificate,
    #[error(
        "there are {0} certificates; leave only the one that belongs to the key, without its chain"
    )]
    SeveralCertificates(usize),
    #[error("the certificate cannot be read: {0}")]
    UnreadableCertificate(String),
    #[error(
        "the certificate of {name} is not one of a certificate authority: it needs the basic constraint CA:TRUE and, if \
         it lists key usages, keyCertSign"
    )]
    NotAnAuthority { name: String },
    #[error(
        "the subject of the certificate of {name} cannot be that of an authority: an attribute occurs twice, or has an \
         unusual type; a subject with one common name is best"
    )]
    UnsupportedSubject { name: String },
    #[error("the private key does not belong to the certificate of {name}; replace both together")]
    ForeignKey { name: String },
    #[error(
        "there is no private key in PEM, which begins with -----BEGIN PRIVATE KEY----- or -----BEGIN EC PRIVATE \
         KEY-----; an encrypted key has to be decrypted first"
    )]
    NoKey,
    #[error(
        "the private key cannot be used: it has to be a key for ECDSA P-256 or P-384, Ed25519 or RSA in PKCS #8, or an \
         ECDSA key in SEC 1, with its public key; `openssl pkcs8 -topk8 -nocrypt` converts others"
    )]
    UnusableKey,
    #[error(
        "there is no signing request in PEM, which begins with -----BEGIN CERTIFICATE REQUEST-----"
    )]
    NoRequest,
    #[error("the signing request cannot be read: {0}")]
    UnreadableRequest(String),
    #[error("the signing request has {0} bytes, more than any request needs")]
    LongRequest(usize),
    #[error("the signing request is not signed with the key that it contains")]
    ForgedRequest,
    #[error("{0:?} is neither a DNS name nor an IP address")]
    UnusableName(String),
    #[error("a certificate cannot be valid for {0:#}")]
    Lifetime(SignedDuration),
    #[error(
        "the certificate authority {name} cannot sign now: it is valid from {not_before} until {not_after}"
    )]
    AuthorityNotValid {
        name: String,
        not_before: Timestamp,
        not_after: Timestamp,
    },
    #[error("{0:?} is not a hash of a key, which is `sha256:` and 64 hex digits")]
    KeyHash(String),
    #[error(
        "an authority has to live at least twice as long as its certificates, the overlap and the distribution together, \
         all of which have to be positive, and a hundred years at most"
    )]
    Policy,
    #[error("the Secret has no {0}; store the certificate and the key of the authority together")]
    Missing(&'static str),
    #[error("{0} in the Secret is not text; it has to be in PEM")]
    NotText(&'static str),
    #[error("{key} in the Secret cannot be used")]
    Stored {
        key: &'static str,
        source: Box<Error>,
    },
    #[error("rotation.json in the Secret cannot be read, and may be removed: {0}")]
    Notes(String),
    #[error("the system has no random numbers")]
    Randomness,
    #[error("cannot make a certificate")]
    Make(#[from] rcgen::Error),
}

impl Error {
    /// The error of a value that is stored under this key.
    pub(crate) fn stored(self, key: &'static str) -> Self {
        Self::Stored {
            key,
            source: Box::new(self),
        }
    }
}
