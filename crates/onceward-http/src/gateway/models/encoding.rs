//! Answers that a provider compressed, although it was asked not to.

use std::io::{self, Write};

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH};

/// The answer without its compression, as it arrives.
pub(crate) enum Decoder {
    Identity,
    Gzip(flate2::write::MultiGzDecoder<Vec<u8>>),
    Deflate(flate2::write::ZlibDecoder<Vec<u8>>),
    Zstd(Box<zstd::stream::write::Decoder<'static, Vec<u8>>>),
}

impl Decoder {
    /// For an answer with these headers. They no longer say that it is compressed.
    ///
    /// # Errors
    /// The name of an encoding that is not known here.
    pub(crate) fn take(headers: &mut HeaderMap) -> Result<Self, String> {
        let Some(encoding) = headers.get(CONTENT_ENCODING) else { return Ok(Self::Identity) };
        let name = String::from_utf8_lossy(encoding.as_bytes()).trim().to_ascii_lowercase();
        let decoder = match name.as_str() {
            "" | "identity" => Self::Identity,
            "gzip" | "x-gzip" => Self::Gzip(flate2::write::MultiGzDecoder::new(Vec::new())),
            "deflate" => Self::Deflate(flate2::write::ZlibDecoder::new(Vec::new())),
            "zstd" => match zstd::stream::write::Decoder::new(Vec::new()) {
                Ok(decoder) => Self::Zstd(Box::new(decoder)),
                Err(error) => return Err(format!("{name}: {error}")),
            },
            _ => return Err(name),
        };
        headers.remove(CONTENT_ENCODING);
        headers.remove(CONTENT_LENGTH);
        Ok(decoder)
    }

    /// What the next bytes of the answer contain.
    pub(crate) fn push(&mut self, bytes: Bytes) -> io::Result<Bytes> {
        Ok(match self {
            Self::Identity => bytes,
            Self::Gzip(decoder) => {
                decoder.write_all(&bytes)?;
                decoder.flush()?;
                std::mem::take(decoder.get_mut()).into()
            }
            Self::Deflate(decoder) => {
                decoder.write_all(&bytes)?;
                decoder.flush()?;
                std::mem::take(decoder.get_mut()).into()
            }
            Self::Zstd(decoder) => {
                decoder.write_all(&bytes)?;
                decoder.flush()?;
                std::mem::take(decoder.get_mut()).into()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn decoder(name: &'static str) -> Result<(Decoder, HeaderMap), String> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(name));
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("7"));
        let decoder = Decoder::take(&mut headers)?;
        Ok((decoder, headers))
    }

    #[test]
    fn every_event_of_a_compressed_stream_is_read_when_it_arrives() {
        let events = ["data: one\n\n", "data: two\n\n", "data: [DONE]\n\n"];
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        let (mut decoder, headers) = decoder("GZip").unwrap();
        assert!(headers.is_empty(), "{headers:?}");
        for event in events {
            gzip.write_all(event.as_bytes()).unwrap();
            gzip.flush().unwrap();
            let sent = std::mem::take(gzip.get_mut());
            assert_eq!(decoder.push(sent.into()).unwrap(), event);
        }
    }

    #[test]
    fn other_encodings_are_named() {
        assert!(decoder("identity").is_ok());
        let zstd = zstd::bulk::compress(b"{}", 3).unwrap();
        assert_eq!(decoder("zstd").unwrap().0.push(zstd.into()).unwrap(), "{}");
        assert_eq!(decoder("br").err().as_deref(), Some("br"));
        assert!(decoder("gzip").unwrap().0.push(Bytes::from_static(b"plain text, not gzip")).is_err());
    }
}
