package paceline

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestACertificateWithoutACAFileIsRefusedInsteadOfPlainText(t *testing.T) {
	bootstrap := []string{"127.0.0.1:1"}
	t.Setenv("PACELINE_SSL_CA_FILE", "")
	t.Setenv("PACELINE_SSL_CERTIFICATE_FILE", "")
	t.Setenv("PACELINE_SSL_KEY_FILE", "")
	_, err := NewClient(Config{Bootstrap: bootstrap, CertFile: "c", KeyFile: "k"})
	if err == nil || !strings.Contains(err.Error(), "PACELINE_SSL_CA_FILE") {
		t.Fatalf("a certificate of the configuration: %v", err)
	}
	t.Setenv("PACELINE_SSL_KEY_FILE", "k")
	if _, err = NewClient(Config{Bootstrap: bootstrap}); err == nil {
		t.Fatal("a key of the environment was ignored")
	}
}

// pemFiles writes a CA file and a key with this mode.
func pemFiles(t *testing.T, mode os.FileMode) (ca, key string) {
	t.Helper()
	ca, key = filepath.Join(t.TempDir(), "ca.crt"), filepath.Join(t.TempDir(), "alice.key")
	for path, mode := range map[string]os.FileMode{ca: 0o644, key: mode} {
		if err := os.WriteFile(path, []byte(testAuthority), mode); err != nil {
			t.Fatal(err)
		}
	}
	return ca, key
}

func TestAKeyThatOtherUsersCanReadIsRefused(t *testing.T) {
	for mode, refused := range map[os.FileMode]bool{0o600: false, 0o644: true, 0o604: true} {
		ca, key := pemFiles(t, mode)
		_, err := NewClient(Config{Bootstrap: []string{"127.0.0.1:1"}, CAFile: ca, CertFile: ca, KeyFile: key})
		if (err != nil && strings.Contains(err.Error(), "chmod 600")) != refused {
			t.Fatalf("mode %o: %v", mode, err)
		}
	}
}

func TestACertificateOfTheConfigurationIsNotReplacedByVariables(t *testing.T) {
	ca, key := pemFiles(t, 0o644) // the error names the key that is used
	t.Setenv("PACELINE_SSL_CA_FILE", ca)
	t.Setenv("PACELINE_SSL_CERTIFICATE_FILE", "other.crt")
	t.Setenv("PACELINE_SSL_KEY_FILE", "other.key")
	_, err := NewClient(Config{Bootstrap: []string{"127.0.0.1:1"}, CertFile: "alice.crt", KeyFile: key})
	if err == nil || !strings.Contains(err.Error(), key) {
		t.Fatalf("the key of the configuration was not used: %v", err)
	}
}

const testAuthority = `-----BEGIN CERTIFICATE-----
MIIBdTCCARugAwIBAgIUJWvvZ7HwBBm12C3fbsrnOs2QXsEwCgYIKoZIzj0EAwIw
DzENMAsGA1UEAwwEdGVzdDAgFw0yNjExMjgxMzMyMjBaGA8yMTI2MTEwNDEzMzIy
MFowDzENMAsGA1UEAwwEdGVzdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABBqw
wBKuW57hKM76QlKGQRLJYnRW/gTT+2XhG2sBBkGMV+BRwb0nwQOWEubySSY03/Ks
P5fP3nVXc6f4y+ruPAyjUzBRMB0GA1UdDgQWBBRr0iIib3Yx7DMIMhIWM8eFpRP1
eDAfBgNVHSMEGDAWgBRr0iIib3Yx7DMIMhIWM8eFpRP1eDAPBgNVHRMBAf8EBTAD
AQH/MAoGCCqGSM49BAMCA0gAMEUCIAJ02RKi8BakeBuPEWTd/r4kYTcdCbzXPAih
H8dJt5AbAiEAoXCEmJjKcJRY2gPixkA3NGVN+fHocjtku5k+Rpm3rCw=
-----END CERTIFICATE-----
`
