//! The names in a certificate (RFC 5280 section 4.2.1.6).

use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// Returns the names in `certificate` (DER), as [`wire::TlsPeer`] represents them; none if it is
/// malformed.
pub(crate) fn of(certificate: &[u8]) -> Vec<String> {
    let Ok(certificate) = Certificate::from_der(certificate) else {
        return Vec::new();
    };
    let Ok(Some((_, SubjectAltName(names)))) = certificate.tbs_certificate().get_extension() else {
        return Vec::new();
    };
    let name = |name: &GeneralName| match name {
        GeneralName::Rfc822Name(name) => Some(format!("email:{name}")),
        GeneralName::DnsName(name) => Some(format!("DNS:{name}")),
        GeneralName::UniformResourceIdentifier(name) => Some(format!("URI:{name}")),
        _ => None,
    };
    names.iter().filter_map(name).collect()
}
