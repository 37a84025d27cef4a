//! The file of a Unix socket.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

/// A Unix socket that only this user can connect to. Its file is removed when it is dropped.
pub struct UnixSocket {
    listener: UnixListener,
    _file: Option<SocketFile>,
}

/// The file of a socket that this process made.
struct SocketFile {
    path: PathBuf,
    /// Held for as long as the socket is in use, so that two servers never replace each other's file.
    _lock: File,
}

impl UnixSocket {
    /// Listens on this path. The file of a server that is gone is replaced.
    ///
    /// # Errors
    /// [`ErrorKind::AddrInUse`] if a server listens on it; [`ErrorKind::AlreadyExists`] if it is not a socket.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let lock_path = beside(path, ".lock");
        let lock = File::options().write(true).create(true).truncate(false).mode(0o600).open(&lock_path)?;
        lock.try_lock().map_err(|_| in_use(path))?;
        match fs::symlink_metadata(path) {
            Ok(meta) if !meta.file_type().is_socket() => {
                let problem = format!("{} exists and is not a socket", path.display());
                return Err(io::Error::new(ErrorKind::AlreadyExists, problem));
            }
            // Another program may listen there, which takes no lock.
            Ok(_) if BlockingStream::connect(path).is_ok() => return Err(in_use(path)),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        // The file gets its mode before it gets its name, so no other user can connect in between.
        let fresh = beside(path, ".new");
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(&fresh)?;
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600))?;
        fs::rename(&fresh, path)?;
        Ok(Self { listener, _file: Some(SocketFile { path: path.to_owned(), _lock: lock }) })
    }

    /// A socket that another program made, for example systemd. Its file stays.
    #[must_use]
    pub fn inherited(listener: UnixListener) -> Self {
        Self { listener, _file: None }
    }

    pub(super) async fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        match fs::remove_file(&self.path) {
            // If it cannot be removed, the next server replaces it.
            Ok(()) | Err(_) => {}
        }
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn in_use(path: &Path) -> io::Error {
    io::Error::new(ErrorKind::AddrInUse, format!("a server listens on {} already", path.display()))
}
