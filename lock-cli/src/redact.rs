//! Keeps secrets out of everything that is printed.
//!
//! All output of `lockctl` itself goes through [`redact`]: it knows the secrets of the store's URL,
//! and the places in any URL where secrets stand.

use std::sync::{Mutex, PoisonError};

static KNOWN: Mutex<Vec<String>> = Mutex::new(Vec::new());

const MASK: &str = "***";

/// Parameters of a URL whose values are no secrets. Errors repeat them: a statement to run would be
/// useless with a mask for the table.
const PLAIN: [&str; 18] = [
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "layout",
    "longest_ttl_ms",
    "node_timeout_ms",
    "peer_lease",
    "peer_skew",
    "peer_zone",
    "port",
    "prefix",
    "sslmode",
    "sslrootcert",
    "ssl-ca",
    "ssl-mode",
    "table",
    "user",
];

/// Remembers the secrets of the store's URL, so that they are masked wherever they turn up, also
/// outside a URL.
pub(crate) fn remember(url: &str) {
    for secret in secrets_in(url) {
        remember_secret(&secret);
    }
}

/// Remembers a secret that came some other way.
pub(crate) fn remember_secret(secret: &str) {
    // A mask for every "a" would make the output unreadable; the place in a URL is masked anyway.
    if secret.len() < 4 {
        return;
    }
    let decoded = decode(secret);
    let mut secrets = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    for form in [secret, &decoded] {
        // As it stands in JSON, and in what is printed with its quotes.
        let quoted = serde_json::Value::from(form).to_string();
        for text in [form, &quoted[1..quoted.len() - 1]] {
            if !secrets.iter().any(|known| known == text) {
                secrets.push(text.to_owned());
            }
        }
    }
    // The longest first: one may contain another.
    secrets.sort_by_key(|s| std::cmp::Reverse(s.len()));
}

/// The text without secrets.
pub(crate) fn redact(text: &str) -> String {
    let mut text = mask_urls(text);
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    for secret in known.iter() {
        if text.contains(secret.as_str()) {
            text = text.replace(secret.as_str(), MASK);
        }
    }
    text
}

fn secrets_in(url: &str) -> Vec<String> {
    let mut secrets = Vec::new();
    walk(url, |part| {
        secrets.push(part.to_owned());
        String::new()
    });
    secrets
}

fn mask_urls(text: &str) -> String {
    walk(text, |_| MASK.to_owned())
}

/// Rebuilds `text`, asking `mask` what to put for each secret part of each URL in it.
fn walk(text: &str, mut mask: impl FnMut(&str) -> String) -> String {
    let ends_word = |c: char| c.is_whitespace() || matches!(c, '\'' | '"' | '`' | '<' | '>');
    let mut out = String::with_capacity(text.len());
    for piece in text.split_inclusive(ends_word) {
        let word = piece.trim_end_matches(ends_word);
        match word.split_once("://") {
            Some((scheme, rest)) => {
                out.push_str(scheme);
                out.push_str("://");
                // Elsewhere a user part without a colon may be a token.
                let names_user = ["postgres", "postgresql", "mysql", "mariadb"]
                    .iter()
                    .any(|sql| scheme.ends_with(sql));
                walk_url(rest, names_user, &mut out, &mut mask);
            }
            // Such as sqlite:PATH?key=value.
            None => match word.split_once('?') {
                Some((head, query)) if head.contains(':') => {
                    out.push_str(head);
                    walk_query(query, &mut out, &mut mask);
                }
                _ => out.push_str(word),
            },
        }
        out.push_str(&piece[word.len()..]);
    }
    out
}

/// What follows `://`. Secret is everything between the first colon of the user part and the last `@`;
/// a user part without a colon, unless it `names_user`; what stands for a port and is no number; and the
/// query values but those of [`PLAIN`].
fn walk_url(url: &str, names_user: bool, out: &mut String, mask: &mut impl FnMut(&str) -> String) {
    // A password may hold anything, also what ends an authority: the query begins after the last `@`.
    let begin = url.rfind('@').unwrap_or(0);
    let (head, query) = match url[begin..].split_once('?') {
        Some((head, query)) => (&url[..begin + head.len()], Some(query)),
        None => (url, None),
    };
    let place = match head.rfind('@') {
        Some(at) => {
            let (user, place) = head.split_at(at);
            match user.split_once(':') {
                Some((user, password)) => {
                    out.push_str(user);
                    out.push(':');
                    out.push_str(&mask(password));
                }
                None if names_user => out.push_str(user),
                None => out.push_str(&mask(user)),
            }
            place
        }
        None => head,
    };
    let (authority, path) = place.split_at(place.find('/').unwrap_or(place.len()));
    match authority.rsplit_once(':') {
        Some((host, port))
            if !port.is_empty()
                && !port.ends_with(']')
                && !port
                    .bytes()
                    .all(|c| c.is_ascii_digit() || matches!(c, b',' | b';' | b'.')) =>
        {
            out.push_str(host);
            out.push(':');
            out.push_str(&mask(port));
        }
        _ => out.push_str(authority),
    }
    out.push_str(path);
    if let Some(query) = query {
        walk_query(query, out, mask);
    }
}

fn walk_query(query: &str, out: &mut String, mask: &mut impl FnMut(&str) -> String) {
    for (n, pair) in query.split('&').enumerate() {
        out.push(if n == 0 { '?' } else { '&' });
        match pair.split_once('=') {
            Some((key, value)) => {
                out.push_str(key);
                out.push('=');
                if PLAIN.contains(&key) {
                    out.push_str(value);
                } else {
                    out.push_str(&mask(value));
                }
            }
            None => out.push_str(pair),
        }
    }
}

/// Percent-decoding; what is not valid stays as it is.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = (bytes[at] == b'%')
            .then(|| bytes.get(at + 1..at + 3))
            .flatten()
            .and_then(|h| std::str::from_utf8(h).ok())
            .and_then(|h| u8::from_str_radix(h, 16).ok());
        if let Some(byte) = hex {
            out.push(byte);
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_of_a_url_that_may_hold_a_secret_is_masked() {
        for (text, safe) in [
            ("postgres://me:s3cret@db/x", "postgres://me:***@db/x"),
            ("a 'redis://:pw@h:1/0' b", "a 'redis://:***@h:1/0' b"),
            ("redis://token@h", "redis://***@h"),
            (
                "quorum+redis://u:pw@a:1,b:2,c:3/0?prefix=x&node_timeout_ms=9",
                "quorum+redis://u:***@a:1,b:2,c:3/0?prefix=x&node_timeout_ms=9",
            ),
            (
                "mysql://u:p@ss:w/rd@h/db?ssl-mode=x",
                "mysql://u:***@h/db?ssl-mode=x",
            ),
            (
                "postgres://h/db?user=u&password=pw no more",
                "postgres://h/db?user=u&password=*** no more",
            ),
            (
                "postgres://u:a?b@h/db?password=c",
                "postgres://u:***@h/db?password=***",
            ),
            (
                "two: a://x:y@z and b://q:r@s",
                "two: a://x:***@z and b://q:***@s",
            ),
            ("postgres://me@h/x?table=t", "postgres://me@h/x?table=t"),
            ("sqlite:///var/lib/x.db", "sqlite:///var/lib/x.db"),
            ("no url at all: 10:20 @home?", "no url at all: 10:20 @home?"),
        ] {
            assert_eq!(redact(text), safe);
        }
    }

    #[test]
    fn a_known_secret_is_masked_anywhere() {
        remember("postgres://me:hunter%2F22@db/x?sslkey=topsecret");
        let safe = redact("driver said hunter/22, hunter%2F22 and topsecret");
        assert_eq!(safe, "driver said ***, *** and ***");
        remember_secret("quo\"ted");
        assert_eq!(redact(r#"{"why":"quo\"ted"}"#), r#"{"why":"***"}"#);
    }
}
