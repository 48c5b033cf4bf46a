//! Certificates for handshakes in tests.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An authority of one's own, made by the program `openssl`. Its files lie in a folder of the test.
#[derive(Debug)]
pub struct Authority {
    folder: PathBuf,
    name: String,
}

impl Authority {
    /// Makes `NAME.crt` and `NAME.key` in this folder, good for two days.
    ///
    /// # Errors
    /// There is no `openssl`, or what it said.
    pub fn new(folder: &Path, name: &str) -> io::Result<Self> {
        let made = Self {
            folder: folder.to_owned(),
            name: name.to_owned(),
        };
        made.openssl(&format!(
            "req -x509 -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.crt -days 2 -subj /CN={name}"
        ))?;
        Ok(made)
    }

    /// Makes `CERT.crt` and `CERT.key` beside it, for these hosts (`IP:127.0.0.1,DNS:localhost`), good for so many
    /// days; an expired one with `-1`. Only the present user can read the key.
    ///
    /// # Errors
    /// What `openssl` said.
    pub fn sign(&self, cert: &str, hosts: &str, days: i32) -> io::Result<()> {
        let name = &self.name;
        let names = format!("{cert}.names");
        std::fs::write(
            self.folder.join(&names),
            format!("subjectAltName={hosts}\n"),
        )?;
        self.openssl(&format!(
            "req -newkey rsa:2048 -nodes -keyout {cert}.key -out {cert}.csr -subj /CN={cert}"
        ))?;
        self.openssl(&format!(
            "x509 -req -in {cert}.csr -CA {name}.crt -CAkey {name}.key -CAcreateserial -out {cert}.crt \
             -days {days} -extfile {names}"
        ))
    }

    fn openssl(&self, words: &str) -> io::Result<()> {
        let made = Command::new("openssl")
            .current_dir(&self.folder)
            .args(words.split(' ').filter(|word| !word.is_empty()))
            .stdin(Stdio::null())
            .output()?;
        if made.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&made.stderr);
        Err(io::Error::other(format!("openssl {words}: {said}")))
    }
}
