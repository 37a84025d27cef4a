//! Certificates of a listener.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use tokio_rustls::rustls::{self, ServerConfig};

/// A certificate with its key.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
}

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or is not PEM.
    #[error("cannot read {}: {source}", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// There is no certificate in the file.
    #[error("{} holds no certificate", .file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// The certificate and the key do not belong together, or cannot be used.
    #[error("the certificate cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
}

impl Tls {
    /// Reads a certificate chain and its private key from PEM files.
    ///
    /// # Errors
    /// If a file cannot be read, or the two do not belong together.
    pub fn read(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let unreadable = |file: &Path| {
            let file = file.to_owned();
            move |source| TlsError::File { file, source }
        };
        let chain: Vec<CertificateDer<'static>> =
            CertificateDer::pem_file_iter(cert).and_then(Iterator::collect).map_err(unreadable(cert))?;
        if chain.is_empty() {
            return Err(TlsError::Empty { file: cert.to_owned() });
        }
        let private = PrivateKeyDer::from_pem_file(key).map_err(unreadable(key))?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, private)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config) })
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.config))
    }
}
