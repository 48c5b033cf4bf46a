//! The text by which our candidates stand in the column of theirs: `lockkit/NONCE/TOKEN/OWNER`, and
//! `lockkit/-/TOKEN/` once released. The nonce decides; the rest is to be read.

use lock_core::{Error, ErrorKind, Nonce, Owner, Result, Token};

const MARK: &str = "lockkit/";
const NOBODY: &str = "-";

/// The width of their column, in characters.
const WIDTH: usize = 255;

/// What a row of ours says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mine {
    /// `None` when it was released.
    pub(super) nonce: Option<Nonce>,
    pub(super) token: Token,
    pub(super) owner: String,
}

impl Mine {
    /// `None` for a row of a node of theirs.
    pub(super) fn read(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix(MARK)?.splitn(3, '/');
        let nonce = match parts.next()? {
            NOBODY => None,
            nonce => Some(nonce.parse().ok()?),
        };
        Some(Self {
            nonce,
            token: Token::new(parts.next()?.parse().ok()?).ok()?,
            owner: parts.next()?.to_owned(),
        })
    }
}

pub(super) fn held(nonce: Nonce, token: Token, owner: &Owner) -> String {
    format!(
        "{MARK}{nonce}/{}/{owner}",
        token.get(),
        owner = owner.as_str()
    )
}

pub(super) fn free(token: Token) -> String {
    format!("{MARK}{NOBODY}/{}/", token.get())
}

/// Refuses an owner that would not fit.
pub(super) fn check(owner: &Owner) -> Result<()> {
    // Mark, nonce, the longest token, and two strokes.
    let most = WIDTH - MARK.len() - 32 - 16 - 2;
    let length = owner.as_str().chars().count();
    if length > most {
        return Err(Error::new(
            ErrorKind::InvalidConfig,
            format!(
                "an owner of {length} characters does not fit into their table; give it at most {most}"
            ),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_theirs_is_not_ours() {
        let owner = Owner::new("a/b é").unwrap();
        let (nonce, token) = (Nonce::from_u128(7), Token::new(9).unwrap());
        let mine = Mine::read(&held(nonce, token, &owner)).unwrap();
        assert_eq!((mine.nonce, mine.token), (Some(nonce), token));
        assert_eq!(mine.owner, owner.as_str());
        assert_eq!(Mine::read(&free(token)).unwrap().nonce, None);
        for theirs in [
            "[0.0.0.0]:8080",
            "host-lockkit/",
            "lockkit/x/1/",
            "lockkit/",
            "",
        ] {
            assert_eq!(Mine::read(theirs), None, "{theirs}");
        }
        let long = Owner::new("x".repeat(197)).unwrap();
        check(&long).unwrap();
        let greatest = Token::new((1 << 53) - 1).unwrap();
        assert!(held(nonce, greatest, &long).chars().count() <= WIDTH);
        assert!(check(&Owner::new("x".repeat(198)).unwrap()).is_err());
    }
}
