{{- define "rota.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "rota.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rota.labels" -}}
{{ include "rota.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "rota.secret" -}}
{{ default (include "rota.fullname" .) .Values.existingSecret }}
{{- end }}

{{- define "rota.serviceAccount" -}}
{{ default (include "rota.fullname" .) .Values.serviceAccount.name }}
{{- end }}

{{- define "rota.namespaceOfAgents" -}}
{{ default .Release.Namespace .Values.kubernetes.namespace }}
{{- end }}

{{/* How browsers reach the API. */}}
{{- define "rota.url" -}}
{{- if .Values.url -}}
{{ .Values.url }}
{{- else if .Values.ingress.enabled -}}
{{ ternary "https" "http" (not (empty .Values.ingress.tlsSecret)) }}://{{ .Values.ingress.host }}
{{- else -}}
http://localhost:7682
{{- end -}}
{{- end }}

{{/* How agents in the cluster reach it. */}}
{{- define "rota.innerUrl" -}}
http://{{ include "rota.fullname" . }}.{{ .Release.Namespace }}.svc:{{ .Values.service.port }}
{{- end }}

{{/* The names by which it is reached in the cluster, and those that the values add. */}}
{{- define "rota.allowedHosts" -}}
{{- $service := include "rota.fullname" . -}}
{{- $inside := printf "%s.%s" $service .Release.Namespace -}}
{{- concat (list $service $inside (printf "%s.svc" $inside) (printf "%s.svc.cluster.local" $inside)) .Values.allowedHosts | join "," -}}
{{- end }}

{{- define "rota.localAgents" -}}
{{- if kindIs "bool" .Values.localAgents -}}
{{ ternary "on" "off" .Values.localAgents }}
{{- else -}}
{{ ternary "off" "on" .Values.kubernetes.enabled }}
{{- end -}}
{{- end }}

{{/* The variables of one part, as YAML of a map. */}}
{{- define "rota.variables" -}}
{{- $given := merge (dict) .own.env .root.Values.env -}}
{{- range $name, $instead := fromYaml (include "rota.hasItsOwnValue" .) -}}
{{- if hasKey $given $name -}}
{{- fail (printf "env must not name %s: set %s instead." $name $instead) -}}
{{- end -}}
{{- end -}}
{{- $set := dict "ROTA_URL" (include "rota.url" .root) "ROTA_LOCAL_AGENTS" (include "rota.localAgents" .root) -}}
{{- $_ := set $set "ROTA_ALLOWED_HOSTS" (include "rota.allowedHosts" .root) -}}
{{- if eq .part "worker" -}}
{{- $_ := set $set "ROTA_URL" (include "rota.innerUrl" .root) -}}
{{- $_ := set $set "ROTA_GRACE_SECONDS" .own.graceSeconds -}}
{{- if .root.Values.kubernetes.enabled -}}
{{- $_ := set $set "ROTA_KUBERNETES_NAMESPACE" (include "rota.namespaceOfAgents" .root) -}}
{{- end -}}
{{- end -}}
{{- toYaml (merge $set $given) -}}
{{- end }}

{{/* What the chart sets, and by which value. */}}
{{- define "rota.hasItsOwnValue" -}}
ROTA_ALLOWED_HOSTS: allowedHosts
ROTA_DATABASE_URL: database.url
ROTA_GRACE_SECONDS: worker.graceSeconds
ROTA_KUBERNETES_NAMESPACE: kubernetes.namespace
ROTA_LISTEN_URL: database.listenUrl
ROTA_LOCAL_AGENTS: localAgents
ROTA_OIDC_CLIENT_SECRET: oidc.clientSecret
ROTA_PORT: service.port
ROTA_URL: url
ROTA_VAULT_KEYS: vault.keys
{{- end }}
