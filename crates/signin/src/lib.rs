//! Sign-in for the project's web pages: who uses this browser, and for how long.
//!
//! A page has no accounts of its own. Its users are those of a Kubernetes cluster or of an OIDC provider, and what they may do
//! is decided by Kubernetes RBAC, elsewhere. After the sign-in, the user's name and groups are in a cookie that only the
//! server can read and write, so that every replica with the same key accepts it, and none keeps a list.
//!
//! Three ways to sign in: the authorization code flow of OIDC with PKCE ([`AuthorizationFlow`]), a token that Kubernetes accepts, and a
//! token that was printed by a command and works once ([`OneTimeTokens`]).
//!
//! | module | what it does |
//! |---|---|
//! | [`cookie`] | the session of a browser as a cookie, and the check that a request comes from the page itself |
//! | [`flow`] | the authorization code flow: its redirects and their checks |
//! | [`one_time`] | tokens that work once |
//! | [`seal`] | encrypts what a browser keeps for the server |
//! | [`user`] | users and groups |
//!
//! Nothing here does I/O or reads a clock.

pub mod cookie;
pub mod flow;
pub mod one_time;
pub mod seal;
pub mod user;

pub use cookie::{Cookies, Session};
pub use flow::AuthorizationFlow;
pub use one_time::OneTimeTokens;
pub use seal::Sealer;
pub use user::User;
