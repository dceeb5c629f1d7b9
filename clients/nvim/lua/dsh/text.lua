--- Text of logs, made harmless before it reaches the screen, a buffer or a register; and times as a person reads them.
local M = {}

local REPLACEMENT = "\239\191\189" -- U+FFFD

-- Byte patterns of UTF-8: what turns the direction of text or cannot be seen, and what breaks lines or is a control.
local INVISIBLE = {
  "\216\156", -- U+061C
  "\226\128[\142\143\170-\174]", -- U+200E, U+200F, U+202A to U+202E
  "\226\129[\166-\169]", -- U+2066 to U+2069
  "\239\187\191", -- U+FEFF
}
local CONTROLS = {
  "\194[\128-\159]", -- U+0080 to U+009F
  "\226\128[\168\169]", -- U+2028, U+2029
}

--- Replace bytes that are no UTF-8.
---@param s string
---@return string
local function valid(s)
  if not s:find("[\128-\255]") or vim.fn.strtrans(s) == s then
    return s
  end
  local parts, at = {}, 1
  while at <= #s do
    local length = 1 + vim.str_utf_end(s, at)
    local char = s:sub(at, at + length - 1)
    parts[#parts + 1] = (length == 1 and char:byte() >= 128) and REPLACEMENT or char
    at = at + length
  end
  return table.concat(parts)
end

---@param s string
---@param controls string pattern of the control characters to be replaced
---@return string
local function harmless(s, controls)
  s = s:gsub(controls, " ")
  if not s:find("[\128-\255]") then
    return s
  end
  s = valid(s)
  for _, pattern in ipairs(INVISIBLE) do
    s = s:gsub(pattern, "")
  end
  for _, pattern in ipairs(CONTROLS) do
    s = s:gsub(pattern, " ")
  end
  return s
end

--- One line that can do nothing to the editor.
---@param s string
---@return string
function M.line(s)
  return harmless(s, "%c")
end

--- The lines of a longer text, each harmless. Tabs stay.
---@param s string
---@return string[]
function M.lines(s)
  local lines = {}
  for line in (s:gsub("\r\n", "\n") .. "\n"):gmatch("([^\n]*)\n") do
    -- Most lines of the longest texts need no more than this look.
    local suspect = line:find("[%z\1-\8\11-\31\127-\255]")
    lines[#lines + 1] = suspect and harmless(line, "[%z\1-\8\11-\31\127]") or line
  end
  return lines
end

--- A range of code points as a range of bytes, both half-open and from 0.
---@param s string
---@param from integer
---@param to integer
---@return integer, integer
function M.byte_range(s, from, to)
  if not s:find("[\128-\255]") then
    return math.min(from, #s), math.min(to, #s)
  end
  local starts = vim.str_utf_pos(s)
  local function byte(n)
    return starts[n + 1] and starts[n + 1] - 1 or #s
  end
  return byte(from), byte(to)
end

--- Cut to so many cells of the screen, with a final ellipsis.
---@param s string
---@param cells integer
---@return string
function M.cut(s, cells)
  if vim.api.nvim_strwidth(s) <= cells then
    return s
  end
  local chars = vim.fn.split(s, "\\zs")
  local used, kept = 0, {}
  for _, char in ipairs(chars) do
    used = used + vim.api.nvim_strwidth(char)
    if used > cells - 1 then
      break
    end
    table.insert(kept, char)
  end
  return table.concat(kept) .. "…"
end

--- Seconds since 1970 of a time of the protocol.
---@param iso string?
---@return integer?
local function instant(iso)
  local y, mo, d, h, mi, s = (iso or ""):match("^(%d+)-(%d+)-(%d+)T(%d+):(%d+):(%d+)")
  if not y then
    return nil
  end
  -- os.time takes local time, so the days since 1970 are counted here (a year that begins in March).
  y, mo = tonumber(y), tonumber(mo)
  if mo <= 2 then
    y, mo = y - 1, mo + 12
  end
  local days = 365 * y + math.floor(y / 4) - math.floor(y / 100) + math.floor(y / 400)
  days = days + math.floor((153 * (mo - 3) + 2) / 5) + tonumber(d) - 719469
  return ((days * 24 + tonumber(h)) * 60 + tonumber(mi)) * 60 + tonumber(s)
end

--- `2 h ago`, the date after a month.
---@param iso string?
---@return string
function M.age(iso)
  local when = instant(iso)
  if not when then
    return "no time"
  end
  local seconds = os.time() - when
  if seconds < 60 then
    return "just now"
  elseif seconds < 3600 then
    return ("%d min ago"):format(seconds / 60)
  elseif seconds < 86400 then
    return ("%d h ago"):format(seconds / 3600)
  elseif seconds < 31 * 86400 then
    return ("%d d ago"):format(seconds / 86400)
  end
  return os.date("%Y-%m-%d", when) --[[@as string]]
end

--- The exact time, here.
---@param iso string?
---@return string
function M.exact(iso)
  local when = instant(iso)
  return when and os.date("%Y-%m-%d %H:%M:%S", when) --[[@as string]] or "no time"
end

--- `1 entry`, `12,345 entries`.
---@param count integer
---@param one string
---@param many string
---@return string
function M.plural(count, one, many)
  return ("%s %s"):format(M.number(count), count == 1 and one or many)
end

--- A number with its thousands apart.
---@param n integer
---@return string
function M.number(n)
  local digits = ("%d"):format(n):reverse():gsub("(%d%d%d)", "%1,"):reverse()
  return (digits:gsub("^,", ""))
end

return M
