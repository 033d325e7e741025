//go:build tools

// Package tools keeps the modules of programs that are built but never imported in go.mod.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
