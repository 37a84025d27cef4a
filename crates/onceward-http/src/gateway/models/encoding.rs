//! Answers that a provider compressed, although it was asked not to.

use std::io::{self, Write};

use brotli_decompressor::DecompressorWriter;
use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH};

/// How much Brotli decompresses at once.
const BUFFER: usize = 4_096;

/// The answer without its compression, as it arrives.
pub(crate) enum Decoder {
    Identity,
    Gzip(flate2::write::MultiGzDecoder<Vec<u8>>),
    Deflate(flate2::write::ZlibDecoder<Vec<u8>>),
    Zstd(Box<zstd::stream::write::Decoder<'static, Vec<u8>>>),
    Brotli(Box<DecompressorWriter<Vec<u8>>>),
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
            "br" => Self::Brotli(Box::new(DecompressorWriter::new(Vec::new(), BUFFER))),
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
            Self::Brotli(decoder) => {
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
    fn every_event_of_a_stream_in_brotli_is_read_when_it_arrives() {
        // The reference encoder wrote this, with a flush after each event. No encoder is needed for anything else.
        let sent: [(&[u8], &str); 3] = [
            (b"\x0b\x05\x80data: one\n\n", "data: one\n\n"),
            (b"\x50\x00\x00\x40\x5a\xe1\x8d\xee\x4e\x11\xa2\x4a\x04\xb6\x60\x00", "data: two\n\n"),
            (
                b"\x68\x00\x00\x40\xc0\x43\xd6\x5f\x33\x95\x75\x53\x04\xe8\x12\x80\xa6\xc6\x07\x03\x03",
                "data: [DONE]\n\n",
            ),
        ];
        let (mut decoder, headers) = decoder("br").unwrap();
        assert!(headers.is_empty(), "{headers:?}");
        for (compressed, event) in sent {
            assert_eq!(decoder.push(compressed.into()).unwrap(), event);
        }
    }

    #[test]
    fn other_encodings_are_named() {
        assert!(decoder("identity").is_ok());
        let zstd = zstd::bulk::compress(b"{}", 3).unwrap();
        assert_eq!(decoder("zstd").unwrap().0.push(zstd.into()).unwrap(), "{}");
        assert_eq!(decoder("compress").err().as_deref(), Some("compress"));
        assert!(decoder("br").unwrap().0.push(Bytes::from_static(b"plain text, not Brotli")).is_err());
        assert!(decoder("gzip").unwrap().0.push(Bytes::from_static(b"plain text, not gzip")).is_err());
    }
}
