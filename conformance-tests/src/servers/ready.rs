//! Asks a server whether it serves, by talking to it as a client does.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use super::Kind;

/// For each step of the talk. A server that starts answers late, and is asked again.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether the server at this loopback port serves a client that logs in.
///
/// # Errors
/// Nobody listens, the talk broke off or timed out, or the server refused; the caller asks again.
pub(super) fn probe(kind: Kind, port: u16) -> io::Result<()> {
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&at, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    match kind {
        Kind::Postgres => postgres(&mut stream),
        Kind::MariaDb => mariadb(&mut stream),
        Kind::Redis => ask(&mut stream, b"PING\r\n", "+PONG"),
        Kind::Etcd => ask(
            &mut stream,
            b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n",
            "\"health\":\"true\"",
        ),
        Kind::ZooKeeper => ask(&mut stream, b"srvr", "Mode:"),
    }
}

fn refused(answer: &[u8]) -> io::Error {
    io::Error::other(format!(
        "not ready: {}",
        String::from_utf8_lossy(answer).trim()
    ))
}

/// Sends a question and reads until the answer holds `wanted`.
fn ask(stream: &mut TcpStream, question: &[u8], wanted: &str) -> io::Result<()> {
    stream.write_all(question)?;
    let mut answer = Vec::new();
    let mut part = [0; 1024];
    loop {
        let n = stream.read(&mut part)?;
        answer.extend_from_slice(&part[..n]);
        if String::from_utf8_lossy(&answer).contains(wanted) {
            return Ok(());
        }
        if n == 0 || answer.starts_with(b"-") || answer.len() > 1 << 16 {
            return Err(refused(&answer));
        }
    }
}

/// Logs in as `postgres` without a password, waits for "ready for query", and says good-bye.
fn postgres(stream: &mut TcpStream) -> io::Result<()> {
    let words = b"user\0postgres\0database\0postgres\0\0";
    let mut start = Vec::new();
    start.extend_from_slice(&(8 + words.len() as u32).to_be_bytes());
    start.extend_from_slice(&(3u32 << 16).to_be_bytes());
    start.extend_from_slice(words);
    stream.write_all(&start)?;
    loop {
        let mut head = [0; 5];
        stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let mut body = vec![0; (length.clamp(4, 1 << 16) - 4) as usize];
        stream.read_exact(&mut body)?;
        match head[0] {
            b'Z' => return stream.write_all(b"X\0\0\0\x04"),
            b'E' => return Err(refused(&body)),
            _ => {}
        }
    }
}

/// Logs in as `root` without a password, and says good-bye, so that the server counts no broken connection.
fn mariadb(stream: &mut TcpStream) -> io::Result<()> {
    const LONG_PASSWORD: u32 = 1;
    const PROTOCOL_41: u32 = 1 << 9;
    const SECURE_CONNECTION: u32 = 1 << 15;
    const PLUGIN_AUTH: u32 = 1 << 19;

    let (_, greeting) = mariadb_packet(stream)?;
    if greeting.first() != Some(&10) {
        return Err(refused(&greeting));
    }
    let mut login = Vec::new();
    let flags = LONG_PASSWORD | PROTOCOL_41 | SECURE_CONNECTION | PLUGIN_AUTH;
    login.extend_from_slice(&flags.to_le_bytes());
    login.extend_from_slice(&(1u32 << 24).to_le_bytes());
    login.push(45); // utf8mb4
    login.extend_from_slice(&[0; 23]);
    login.extend_from_slice(b"root\0");
    login.push(0); // no password
    login.extend_from_slice(b"mysql_native_password\0");
    send_mariadb(stream, 1, &login)?;

    let (sequence, mut answer) = mariadb_packet(stream)?;
    if answer.first() == Some(&0xfe) {
        send_mariadb(stream, sequence.wrapping_add(1), &[])?;
        (_, answer) = mariadb_packet(stream)?;
    }
    if answer.first() != Some(&0) {
        return Err(refused(&answer));
    }
    send_mariadb(stream, 0, &[1])
}

fn send_mariadb(stream: &mut TcpStream, sequence: u8, body: &[u8]) -> io::Result<()> {
    let length = (body.len() as u32).to_le_bytes();
    let mut packet = vec![length[0], length[1], length[2], sequence];
    packet.extend_from_slice(body);
    stream.write_all(&packet)
}

fn mariadb_packet(stream: &mut TcpStream) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 4];
    stream.read_exact(&mut head)?;
    let length = u32::from_le_bytes([head[0], head[1], head[2], 0]).min(1 << 16);
    let mut body = vec![0; length as usize];
    stream.read_exact(&mut body)?;
    Ok((head[3], body))
}
