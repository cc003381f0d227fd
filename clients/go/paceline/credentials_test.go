package paceline

import (
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
