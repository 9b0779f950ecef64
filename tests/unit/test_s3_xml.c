/* The XML reader and what S3 answers look like on different servers. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include "objstore/s3_xml.h"

struct rows {
    unsigned n;
    char keys[8][128];
    uint64_t sizes[8];
    int64_t modified[8];
    char uploads[8][64];
};

static int take(void *arg, const struct obj_entry *e)
{
    struct rows *r = arg;
    cr_assert(lt(uint, r->n, 8));
    snprintf(r->keys[r->n], 128, "%s", e->key);
    r->sizes[r->n] = e->size;
    r->modified[r->n] = e->modified_ms;
    snprintf(r->uploads[r->n], 64, "%s", e->upload_id ? e->upload_id : "");
    r->n++;
    return 0;
}

static int list(const char *doc, struct rows *rows, struct s3_page *page)
{
    *rows = (struct rows){0};
    return s3_xml_list(doc, strlen(doc), page, take, rows);
}

#define PAGE(inner) \
    "<?xml version=\"1.0\"?>\n<ListBucketResult xmlns=\"urn:x\">" inner "</ListBucketResult>\n"

Test(s3_xml, a_page_is_read_with_entities_and_white_space_between_tags)
{
    struct rows r;
    struct s3_page page;
    cr_assert(zero(int, list(PAGE("\n  <IsTruncated>true</IsTruncated>\n"
                                  " <NextContinuationToken>a&#43;b=</NextContinuationToken>"
                                  "<Contents>\n <Key>p/a&amp;b &lt;&#x263A;&gt;</Key>\n"
                                  " <ETag>&#34;x&#34;</ETag><Size>12</Size>"
                                  "<LastModified>2024-02-29T12:00:00.250Z</LastModified>"
                                  "<Owner><ID>1</ID></Owner></Contents>"
                                  "<Contents><Key><![CDATA[c<d]]></Key><Size>0</Size></Contents>"),
                             &r, &page)));
    cr_assert(eq(uint, r.n, 2));
    cr_assert(eq(str, r.keys[0], "p/a&b <\xe2\x98\xba>"));
    cr_assert(eq(u64, r.sizes[0], 12));
    cr_assert(eq(i64, r.modified[0], 1709208000250));
    cr_assert(eq(str, r.keys[1], "c<d"));
    cr_assert(page.truncated);
    cr_assert(eq(str, page.token.p, "a+b="));
    s3_page_free(&page);
}

Test(s3_xml, keys_are_url_decoded_only_when_the_answer_says_so_wherever_it_says_it)
{
    struct rows r;
    struct s3_page page;
    cr_assert(zero(int, list(PAGE("<Contents><Key>a+b%2Bc%01</Key><Size>1</Size></Contents>"
                                  "<EncodingType>url</EncodingType>"),
                             &r, &page)));
    cr_assert(eq(str, r.keys[0], "a b+c\x01"));
    cr_assert(zero(int, list(PAGE("<EncodingType></EncodingType>"
                                  "<Contents><Key>a+b%2Bc</Key><Size>1</Size></Contents>"),
                             &r, &page)));
    cr_assert(eq(str, r.keys[0], "a+b%2Bc"));
}

Test(s3_xml, an_empty_bucket_is_an_empty_page)
{
    struct rows r;
    struct s3_page page;
    cr_assert(zero(int, list("<ListBucketResult/>", &r, &page)));
    cr_assert(zero(uint, r.n));
    cr_assert(not(page.truncated));
}

Test(s3_xml, malformed_pages_are_refused)
{
    static const char *const bad[] = {
        "",
        "x",
        "<",
        "<a",
        "<ListBucketResult>",
        "<ListBucketResult></Other>",
        "<Error/>",
        "<!DOCTYPE a [<!ENTITY b 'c'>]><ListBucketResult/>",
        PAGE("<Contents><Key>a</Key></Contents>"),   /* no size */
        PAGE("<Contents><Size>1</Size></Contents>"), /* no key */
        PAGE("<Contents><Key>a</Key><Size>-1</Size></Contents>"),
        PAGE("<Contents><Key>a</Key><Size>99999999999999999999</Size></Contents>"),
        PAGE("<Contents><Key>&bogus;</Key><Size>1</Size></Contents>"),
        PAGE("<Contents><Key>&#0;</Key><Size>1</Size></Contents>"),
        PAGE("<Contents><Key>&#xD800;</Key><Size>1</Size></Contents>"),
        PAGE("<EncodingType>url</EncodingType><Contents><Key>%0</Key><Size>1</Size></Contents>"),
        PAGE("<EncodingType>url</EncodingType><Contents><Key>%00</Key><Size>1</Size></Contents>"),
        PAGE("<IsTruncated>true</IsTruncated>"), /* more, but not where */
        PAGE("<a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a>"),
        "<ListBucketResult><![CDATA[",
        "<ListBucketResult><!--",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct rows r;
        struct s3_page page;
        cr_assert(eq(int, list(bad[i], &r, &page), -EBADMSG), "%s", bad[i]);
    }
}

Test(s3_xml, uploads_in_progress_are_read_with_their_markers)
{
    struct rows r;
    struct s3_page page;
    cr_assert(zero(int, list("<ListMultipartUploadsResult><KeyMarker></KeyMarker>"
                             "<NextKeyMarker>k</NextKeyMarker>"
                             "<NextUploadIdMarker>u</NextUploadIdMarker>"
                             "<IsTruncated>true</IsTruncated><Upload><Key>k</Key>"
                             "<UploadId>u-1</UploadId><Initiator><ID>x</ID></Initiator>"
                             "<Initiated>1970-01-01T00:00:02Z</Initiated></Upload>"
                             "</ListMultipartUploadsResult>",
                             &r, &page)));
    cr_assert(eq(uint, r.n, 1));
    cr_assert(eq(str, r.uploads[0], "u-1"));
    cr_assert(eq(i64, r.modified[0], 2000));
    cr_assert(eq(str, page.key_marker.p, "k"));
    cr_assert(eq(str, page.upload_marker.p, "u"));
    s3_page_free(&page);
}

Test(s3_xml, an_error_document_is_understood_plain_wrapped_and_cut)
{
    struct s3_error e;
    const char *plain = "<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code>"
                        "<Message>No &quot;way&quot;\nback</Message>"
                        "<RequestId>R1</RequestId></Error>";
    cr_assert(zero(int, s3_xml_error(plain, strlen(plain), &e)));
    cr_assert(eq(str, e.code, "AccessDenied"));
    cr_assert(eq(str, e.message, "No \"way\" back"));
    cr_assert(eq(str, e.request_id, "R1"));
    const char *wrapped = "<ErrorResponse><Error><Code>X</Code></Error></ErrorResponse>";
    cr_assert(zero(int, s3_xml_error(wrapped, strlen(wrapped), &e)));
    cr_assert(eq(str, e.code, "X"));
    const char *cut = "<Error><Code>SlowDown</Code><Mess";
    cr_assert(zero(int, s3_xml_error(cut, strlen(cut), &e)));
    cr_assert(eq(str, e.code, "SlowDown"));
    cr_assert(eq(int, s3_xml_error("<html/>", 7, &e), -EBADMSG));
}

Test(s3_xml, a_completion_is_told_from_an_error_behind_status_200)
{
    char etag[OBJ_ETAG_MAX];
    struct s3_error e;
    const char *ok = "  \n <CompleteMultipartUploadResult><Key>Error</Key>"
                     "<ETag>&quot;a-2&quot;</ETag></CompleteMultipartUploadResult>";
    cr_assert(zero(int, s3_xml_complete(ok, strlen(ok), etag, &e)));
    cr_assert(eq(str, etag, "\"a-2\""));
    const char *bad = "   <Error><Code>InternalError</Code></Error>";
    cr_assert(eq(int, s3_xml_complete(bad, strlen(bad), etag, &e), -EIO));
    cr_assert(eq(str, e.code, "InternalError"));
    cr_assert(eq(int, s3_xml_complete("", 0, etag, &e), -EBADMSG));
}

Test(s3_xml, an_upload_id_is_found_in_its_own_document_only)
{
    char *id;
    const char *ok = "<InitiateMultipartUploadResult><UploadId>abc</UploadId>"
                     "</InitiateMultipartUploadResult>";
    cr_assert(zero(int, s3_xml_upload_id(ok, strlen(ok), &id)));
    cr_assert(eq(str, id, "abc"));
    free(id);
    cr_assert(eq(int, s3_xml_upload_id("<A><UploadId>abc</UploadId></A>", 31, &id), -EBADMSG));
    cr_assert(eq(int, s3_xml_upload_id(ok, strlen(ok) - 3, &id), -EBADMSG));
}

Test(s3_xml, keys_that_were_not_deleted_are_counted_but_missing_ones_are_not)
{
    unsigned failed;
    struct s3_error e;
    const char *doc = "<DeleteResult><Error><Key>a</Key><Code>NoSuchKey</Code></Error>"
                      "<Error><Key>b</Key><Code>AccessDenied</Code><Message>m</Message></Error>"
                      "<Deleted><Key>c</Key></Deleted>"
                      "<Error><Key>d</Key><Code>InternalError</Code></Error></DeleteResult>";
    cr_assert(zero(int, s3_xml_deleted(doc, strlen(doc), &failed, &e)));
    cr_assert(eq(uint, failed, 2));
    cr_assert(eq(str, e.code, "AccessDenied"));
}

Test(s3_xml, text_is_escaped_or_refused)
{
    struct sbuf b = {0};
    cr_assert(s3_xml_escape(&b, "a<&>\"\t\xc3\xa9"));
    cr_assert(eq(str, b.p, "a&lt;&amp;&gt;&quot;&#9;\xc3\xa9"));
    cr_assert(not(s3_xml_escape(&b, "\x01")));
    sbuf_free(&b);
}

Test(s3_xml, times_of_other_zones_and_nonsense_are_not_times)
{
    cr_assert(eq(i64, s3_iso_time_ms("2024-01-01T00:00:00+00:00"), 1704067200000));
    cr_assert(zero(i64, s3_iso_time_ms("2024-01-01T00:00:00+02:00")));
    cr_assert(zero(i64, s3_iso_time_ms("yesterday")));
}
