//! TLS to the server. The server's certificate and its name are always checked.

use std::path::Path;
use std::sync::Arc;

use onceward::StoreError;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

/// The connector, which trusts the certificates in the file or those of the machine.
pub(super) fn connector(ca: Option<&Path>) -> Result<TlsConnector, StoreError> {
    let roots = match ca {
        Some(path) => roots_in(path)?,
        None => machine_roots()?,
    };
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| StoreError::because("TLS cannot be set up", error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Why a TLS connection failed.
pub(super) fn explain(error: &std::io::Error) -> String {
    let said = error.to_string();
    if said.contains("CaUsedAsEndEntity") {
        return "its certificate is that of an authority (CA:TRUE), and no server may use such a certificate itself. \
                Give the server a certificate with CA:FALSE, self-signed or signed by that authority"
            .to_owned();
    }
    said
}

fn roots_in(path: &Path) -> Result<RootCertStore, StoreError> {
    let unusable =
        |why: String| StoreError::Unusable { what: format!("ca={} cannot be used: {why}", path.display()) };
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| unusable(error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(unusable("it contains no certificate".to_owned()));
    }
    Ok(roots)
}

fn machine_roots() -> Result<RootCertStore, StoreError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        let what = "the machine has no root certificates; install ca-certificates, or set ca=FILE";
        return Err(StoreError::Unusable { what: what.to_owned() });
    }
    Ok(roots)
}
